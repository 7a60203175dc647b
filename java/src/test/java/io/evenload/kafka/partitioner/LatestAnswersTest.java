package io.evenload.kafka.partitioner;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.Map;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

class LatestAnswersTest {
    private static final String TOPIC = "events";
    private static final int RECORD_BYTES = 1000;
    private static final byte[] VALUE = new byte[RECORD_BYTES];

    private final LatestAnswers latest = new LatestAnswers();
    private RouteReader reader;
    private TopicTurns turns;

    @BeforeEach
    void open() {
        // Nobody answers there.
        Settings settings =
                Settings.of(Map.of("evenload.url", "http://127.0.0.1:1", "evenload.first.route.timeout.ms", 0));
        reader = RouteReader.open(settings);
        turns = new TopicTurns(TOPIC, null, settings, reader, "test");
    }

    @AfterEach
    void close() {
        reader.close();
    }

    @Test
    void anAnswerThatIsntUsedIsTakenBackEvenIfMemoryIsTidiedUpMeanwhile() {
        int partition = answered(VALUE);
        System.gc();
        latest.maybeUnused(TOPIC, partition);
        latest.takeBackUnused(TOPIC, VALUE);
        assertEquals(0, turns.sentBytes());
    }

    @Test
    void theSecondAnswerStays() {
        int partition = answered(VALUE);
        latest.maybeUnused(TOPIC, partition);
        latest.takeBackUnused(TOPIC, VALUE);
        answered(VALUE);
        latest.takeBackUnused(TOPIC, new byte[0]);
        assertEquals(RECORD_BYTES, turns.sentBytes());
    }

    @Test
    void ofARecordWithAPartitionOfItsOwnNothingIsTakenBack() {
        int partition = answered(VALUE);
        latest.maybeUnused(TOPIC, partition); // of the record with a partition, about which nobody is asked
        latest.takeBackUnused(TOPIC, new byte[RECORD_BYTES]);
        assertEquals(RECORD_BYTES, turns.sentBytes());
    }

    @Test
    void anotherThreadsAnswerStays() throws InterruptedException {
        int partition = answered(VALUE);
        Thread other = new Thread(() -> {
            latest.maybeUnused(TOPIC, partition);
            latest.takeBackUnused(TOPIC, VALUE);
        });
        other.start();
        other.join();
        latest.takeBackUnused(TOPIC, VALUE);
        assertEquals(RECORD_BYTES, turns.sentBytes());
    }

    private int answered(byte[] value) {
        int partition = turns.partition(value.length, Clusters.ofOnePartition(TOPIC));
        latest.keep(turns, partition, value.length, value);
        return partition;
    }
}
