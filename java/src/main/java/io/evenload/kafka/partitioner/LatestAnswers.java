package io.evenload.kafka.partitioner;

import java.util.Collections;
import java.util.Map;
import java.util.WeakHashMap;

/**
 * What each thread was answered last, for clients before 4.0: these ask for the first record of a batch twice, and
 * don't use the first answer. Any thread may call anything.
 *
 * <p>A thread local would do neither way: held by it, answers would keep this class, and an application's with it, for
 * as long as a pool's threads live; held weakly by it, they would be lost whenever memory is tidied up between the two
 * questions. So it is the partitioner that holds them.
 */
final class LatestAnswers {
    private final Map<Thread, Answer> byThread = Collections.synchronizedMap(new WeakHashMap<>());

    /** This thread's record goes there. */
    void keep(TopicTurns turns, int partition, long sizeBytes, byte[] value) {
        byThread.put(Thread.currentThread(), new Answer(turns, partition, sizeBytes, value));
    }

    /** The client begins a batch and is about to ask this thread's last question again, if it was one of ours. */
    void maybeUnused(String topic, int partition) {
        Answer answer = byThread.get(Thread.currentThread());
        if (answer != null && answer.partition == partition && answer.turns.topic.equals(topic)) {
            answer.isUnused = true;
        }
    }

    /** This thread is asked for that record: if for the second time, the first answer isn't used. */
    void takeBackUnused(String topic, byte[] value) {
        Answer answer = byThread.get(Thread.currentThread());
        if (answer != null && answer.isUnused) {
            if (answer.value == value && answer.turns.topic.equals(topic)) {
                answer.turns.giveBack(answer.partition, answer.sizeBytes);
            }
            byThread.remove(Thread.currentThread());
        }
    }

    private static final class Answer {
        final TopicTurns turns;
        final int partition;
        final long sizeBytes;
        final byte[] value;
        boolean isUnused;

        Answer(TopicTurns turns, int partition, long sizeBytes, byte[] value) {
            this.turns = turns;
            this.partition = partition;
            this.sizeBytes = sizeBytes;
            this.value = value;
        }
    }
}
