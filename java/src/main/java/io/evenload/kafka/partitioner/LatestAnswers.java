package io.evenload.kafka.partitioner;

import java.lang.ref.WeakReference;

/**
 * What each thread was answered last, for clients before 4.0: these ask for the first record of a batch twice, and
 * don't use the first answer. Any thread may call anything.
 *
 * <p>A pool's threads outlive a producer, and would keep this class, and an application's with it, if they held anything
 * of its classes. So a thread holds an array of what Java itself has (a record's value until its next one), and a topic's
 * turns weakly, which the partitioner holds as long as it is open.
 */
final class LatestAnswers {
    private static final int TURNS = 0; // WeakReference of TopicTurns
    private static final int VALUE = 1; // byte[]
    private static final int NUMBERS = 2; // long[]: the next three
    private static final int PARTITION = 0;
    private static final int SIZE = 1;
    private static final int IS_UNUSED = 2;

    private final ThreadLocal<Object[]> ofThread = new ThreadLocal<>();

    /** This thread's record goes there. */
    void keep(TopicTurns turns, int partition, long sizeBytes, byte[] value) {
        Object[] answer = ofThread.get();
        if (answer == null) {
            answer = new Object[] {null, null, new long[3]};
            ofThread.set(answer);
        }
        answer[TURNS] = turns.weakly;
        answer[VALUE] = value;
        long[] numbers = (long[]) answer[NUMBERS];
        numbers[PARTITION] = partition;
        numbers[SIZE] = sizeBytes;
        numbers[IS_UNUSED] = 0;
    }

    /** The client begins a batch and is about to ask this thread's last question again, if it was one of ours. */
    void maybeUnused(String topic, int partition) {
        Object[] answer = ofThread.get();
        TopicTurns turns = turns(answer);
        if (turns != null && turns.topic.equals(topic) && ((long[]) answer[NUMBERS])[PARTITION] == partition) {
            ((long[]) answer[NUMBERS])[IS_UNUSED] = 1;
        }
    }

    /** This thread is asked for that record: if for the second time, the first answer isn't used. */
    void takeBackUnused(String topic, byte[] value) {
        Object[] answer = ofThread.get();
        if (answer == null || ((long[]) answer[NUMBERS])[IS_UNUSED] == 0) {
            return;
        }
        long[] numbers = (long[]) answer[NUMBERS];
        TopicTurns turns = turns(answer);
        if (turns != null && turns.topic.equals(topic) && answer[VALUE] == value) {
            turns.giveBack((int) numbers[PARTITION], numbers[SIZE]);
        }
        numbers[IS_UNUSED] = 0;
    }

    private static TopicTurns turns(Object[] answer) {
        return answer == null ? null : (TopicTurns) ((WeakReference<?>) answer[TURNS]).get();
    }
}
