package io.evenload.kafka.telemetry;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;

/** Pushes on their way from request threads to the one that forwards them; bounded by bytes. */
final class PushQueue {
    private final long maxBytes;
    private final long enoughBytes;
    private final ArrayDeque<Push> waiting = new ArrayDeque<>();
    private volatile long bytes;

    /** Room for so many bytes; of which so many are enough to be taken at once. */
    PushQueue(long maxBytes, long enoughBytes) {
        this.maxBytes = maxBytes;
        this.enoughBytes = Math.min(enoughBytes, maxBytes / 2);
    }

    /** Whether there is room for a payload of so many bytes, as far as can be known without waiting. */
    boolean hasRoomFor(int payloadBytes) {
        return bytes + payloadBytes <= maxBytes;
    }

    /** Forgets what is there; how much that was. */
    synchronized int clear() {
        int count = waiting.size();
        waiting.clear();
        bytes = 0;
        return count;
    }

    /** Whether there was room. Never waits for anything but a moment's lock. */
    synchronized boolean offer(Push push) {
        if (bytes + push.sizeBytes() > maxBytes) {
            return false;
        }
        waiting.add(push);
        bytes += push.sizeBytes();
        // Waking somebody takes a request thread longer than all the rest: who takes looks by itself now and then.
        if (bytes >= enoughBytes) {
            notifyAll();
        }
        return true;
    }

    /** Waits until there is something, and looks so often; sooner once there is enough. */
    synchronized List<Push> take(long everyMs) throws InterruptedException {
        if (bytes < enoughBytes) {
            wait(everyMs);
        }
        while (waiting.isEmpty()) {
            wait(everyMs);
        }
        List<Push> taken = new ArrayList<>();
        long takenBytes = 0;
        while (!waiting.isEmpty() && takenBytes < enoughBytes) {
            Push push = waiting.remove();
            takenBytes += push.sizeBytes();
            taken.add(push);
        }
        bytes -= takenBytes;
        return taken;
    }
}
