package io.evenload.kafka.telemetry;

import io.evenload.kafka.client.RefusedException;
import io.evenload.kafka.client.ServiceClient;
import io.evenload.kafka.client.UnusableException;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.http.HttpRequest;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.zip.GZIPOutputStream;
import org.apache.kafka.server.authorizer.AuthorizableRequestContext;
import org.apache.kafka.server.telemetry.ClientTelemetryPayload;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Hands pushes on to a collector service as OTLP/HTTP, in a daemon thread of its own, which the first push starts.
 *
 * <p>Request threads only put pushes into the queue. What the service doesn't take at once is dropped and counted, never
 * sent again: the next push says it anew. While it is in trouble, nothing is kept for it.
 */
final class Forwarder implements AutoCloseable {
    private static final Logger LOG = LoggerFactory.getLogger(TelemetryPlugin.class);
    private static final long GATHER_MS = 200;
    private static final long ENOUGH_BYTES = 1 << 20;
    // As the service takes it, before it is packed and after, which may make it a little larger.
    private static final int BODY_MAX_BYTES = (1 << 20) - 4096;
    private static final long TIMEOUT_MS = 5000;
    private static final long BACKOFF_MIN_MS = 1000;
    private static final long BACKOFF_MAX_MS = 30_000;

    private final TelemetrySettings settings;
    private final TelemetryCounts counts;
    private final PushQueue queue;
    private volatile String brokerId;
    private volatile String clusterId = "";
    private volatile boolean isClosed;
    private volatile boolean isResting;
    private volatile Thread thread;
    private ExecutorService executor;
    private ServiceClient service;
    private boolean isInTrouble;
    private boolean hasSaidWrong;
    private long backoffMs = BACKOFF_MIN_MS;

    Forwarder(TelemetrySettings settings, TelemetryCounts counts, String brokerId) {
        this.settings = settings;
        this.counts = counts;
        this.brokerId = brokerId;
        queue = new PushQueue(settings.queueBytes, ENOUGH_BYTES);
    }

    /** Who the broker is, once it knows. */
    void name(String broker, String cluster) {
        brokerId = broker;
        clusterId = cluster;
    }

    /** In a request thread: takes a push, or drops it. */
    void take(AuthorizableRequestContext context, ClientTelemetryPayload pushed, int intervalMs) {
        boolean isTaken = !isClosed
                && !isResting
                && queue.hasRoomFor(pushed.data().remaining())
                && queue.offer(new Push(context, pushed, intervalMs));
        if (!isTaken) {
            counts.dropped.incrementAndGet();
        } else if (thread == null) {
            start();
        }
    }

    @Override
    public synchronized void close() {
        isClosed = true;
        if (thread != null) {
            thread.interrupt();
        }
    }

    private synchronized void start() {
        if (thread != null || isClosed) {
            return;
        }
        executor = Executors.newCachedThreadPool(task -> daemon(task, "evenload-telemetry-http"));
        Thread started = daemon(this::run, "evenload-telemetry");
        started.start();
        thread = started;
    }

    private static Thread daemon(Runnable task, String name) {
        Thread thread = new Thread(task, name);
        thread.setDaemon(true);
        return thread;
    }

    private void run() {
        try {
            while (!isClosed) {
                forwardUnlessWrong();
            }
        } catch (InterruptedException closed) {
            LOG.debug("the broker ends");
        } finally {
            executor.shutdown();
        }
    }

    /** Whatever is wrong, the thread goes on: nobody would start another. */
    private void forwardUnlessWrong() throws InterruptedException {
        try {
            forward(queue.take(GATHER_MS));
        } catch (InterruptedException error) {
            throw error;
        } catch (Throwable error) {
            if (!hasSaidWrong) {
                hasSaidWrong = true;
                LOG.error("forwarding clients' metrics failed unexpectedly; it goes on", error);
            }
        }
    }

    /** In as many requests as it takes; what is left when the service is in trouble is lost. */
    private void forward(List<Push> pushes) throws InterruptedException {
        Body body = new Body();
        for (int place = 0; place < pushes.size(); place++) {
            byte[] regrouped = regrouped(pushes.get(place));
            if (regrouped == null) {
                continue;
            }
            if (body.sizeBytes + regrouped.length > BODY_MAX_BYTES) {
                if (!isSent(body)) {
                    counts.failed.addAndGet(pushes.size() - place);
                    return;
                }
                body = new Body();
            }
            body.add(regrouped);
        }
        isSent(body);
    }

    private byte[] regrouped(Push push) {
        try {
            return Otlp.regrouped(Unpacking.unpacked(push.payload), Otlp.attributes(push, brokerId, clusterId));
        } catch (Unreadable error) {
            if (counts.unreadable.getAndIncrement() == 0) {
                LOG.warn(
                        "client {} pushes what can't be read: {}; more of that is only counted",
                        push.clientId(),
                        error.getMessage());
            }
            return null;
        }
    }

    /** Whether the service took it, or refused what it holds, so that it may be given more. */
    private boolean isSent(Body body) throws InterruptedException {
        if (body.numPushes == 0) {
            return true;
        }
        try {
            if (service == null) {
                service = new ServiceClient(settings.url, settings.tokenFile, settings.caFile, executor);
            }
            HttpRequest.Builder request = service.request("/v1/metrics")
                    .header("Content-Type", "application/x-protobuf")
                    .header("Content-Encoding", "gzip")
                    .POST(HttpRequest.BodyPublishers.ofByteArray(body.packed()));
            service.exchange(request, TIMEOUT_MS);
        } catch (UnusableException error) {
            counts.failed.addAndGet(body.numPushes);
            if (!isInTrouble) {
                isInTrouble = true;
                LOG.warn(
                        "the collector service at {} doesn't take clients' metrics: {}; they are dropped until it does",
                        settings.url,
                        error.getMessage());
            }
            if (error instanceof RefusedException && !((RefusedException) error).isOfSender()) {
                return true;
            }
            rest();
            return false;
        }
        counts.forwarded.addAndGet(body.numPushes);
        backoffMs = BACKOFF_MIN_MS;
        if (isInTrouble) {
            isInTrouble = false;
            LOG.warn("the collector service at {} takes clients' metrics again", settings.url);
        }
        return true;
    }

    /** Leaves a service alone that is in trouble; what comes meanwhile is dropped. */
    private void rest() throws InterruptedException {
        isResting = true;
        try {
            long endsAtNanos = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(backoffMs);
            backoffMs = Math.min(BACKOFF_MAX_MS, 2 * backoffMs);
            TimeUnit.NANOSECONDS.sleep(Math.max(1, endsAtNanos - System.nanoTime()));
            counts.dropped.addAndGet(queue.clear());
        } finally {
            isResting = false;
        }
    }

    /** Of one request. */
    private static final class Body {
        int sizeBytes;
        int numPushes;
        private final List<byte[]> parts = new ArrayList<>();

        void add(byte[] regrouped) {
            parts.add(regrouped);
            sizeBytes += regrouped.length;
            numPushes++;
        }

        byte[] packed() {
            ByteArrayOutputStream packed = new ByteArrayOutputStream();
            // Closed here: what packs holds memory outside the heap.
            try (GZIPOutputStream packing = new GZIPOutputStream(packed)) {
                for (byte[] part : parts) {
                    packing.write(part);
                }
            } catch (IOException error) {
                throw new UncheckedIOException(error); // a byte array takes everything
            }
            return packed.toByteArray();
        }
    }
}
