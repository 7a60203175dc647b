package io.evenload.kafka.partitioner;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.atomic.AtomicLongArray;
import org.junit.jupiter.api.Test;

class TurnRouteTest {
    private static final int BATCH = 16_384;

    @Test
    void goesTheWayThatPythonGoesBitForBit() throws Exception {
        for (Object each : (List<?>) Vectors.read("turn_routes.json")) {
            Map<?, ?> vector = (Map<?, ?>) each;
            TurnRoute route =
                    new TurnRoute(numbers(vector.get("shares")), (Long) vector.get("batch_bytes"), new SentBytes());
            route.skipTurns(((Long) vector.get("skip_turns")).intValue());
            List<Long> went = new ArrayList<>();
            for (Object step : (List<?>) vector.get("steps")) {
                Map<?, ?> told = (Map<?, ?>) step;
                if (told.containsKey("send")) {
                    went.add((long) route.partitionFor((Long) told.get("send")));
                } else if (told.containsKey("give_back")) {
                    route.giveBack(((Long) told.get("partition")).intValue(), (Long) told.get("give_back"));
                } else {
                    TurnRoute next =
                            new TurnRoute(numbers(told.get("shares")), (Long) told.get("batch_bytes"), new SentBytes());
                    assertTrue(next.takeOver(route));
                    route = next;
                }
            }
            assertEquals(vector.get("partitions"), went);
        }
    }

    @Test
    void sharesHoldWithFourThreadsAtATime() throws Exception {
        double[] shares = {0.4, 0.3, 0.2, 0.1, 0.0};
        SentBytes sent = new SentBytes();
        TurnRoute route = new TurnRoute(shares, BATCH, sent);
        AtomicLongArray bytes = new AtomicLongArray(shares.length);
        int recordBytes = 1000;
        int numRecords = 200_000;
        inThreads(4, () -> {
            for (int number = 0; number < numRecords; number++) {
                bytes.addAndGet(route.partitionFor(recordBytes), recordBytes);
            }
        });
        double total = 4.0 * numRecords * recordBytes;
        double most = 1.5 * (BATCH + recordBytes) + 4 * BATCH;
        for (int partition = 0; partition < shares.length; partition++) {
            assertEquals(shares[partition] * total, bytes.get(partition), most, "partition " + partition);
        }
        assertEquals(total, sent.total(), BATCH + 4 * recordBytes);
    }

    @Test
    void manyTakeOversLoseNothingThatMatters() throws Exception {
        double[] shares = {0.5, 0.3, 0.2};
        SentBytes sent = new SentBytes();
        AtomicLongArray bytes = new AtomicLongArray(shares.length);
        TurnRoute[] current = {new TurnRoute(shares, BATCH, sent)};
        int numTakeOvers = 2000;
        int recordBytes = 500;
        int numRecords = 100_000;
        inThreads(2, () -> {
            for (int number = 0; number < numRecords; number++) {
                bytes.addAndGet(current[0].partitionFor(recordBytes), recordBytes);
                if (number % (2 * numRecords / numTakeOvers) == 0) {
                    synchronized (current) {
                        TurnRoute next = new TurnRoute(shares, BATCH, sent);
                        if (next.takeOver(current[0])) {
                            current[0] = next;
                        }
                    }
                }
            }
        });
        double total = 2.0 * numRecords * recordBytes;
        for (int partition = 0; partition < shares.length; partition++) {
            assertEquals(shares[partition], bytes.get(partition) / total, 0.02, "partition " + partition);
        }
    }

    @Test
    void whatIsGivenBackIsMadeUpFor() {
        SentBytes sent = new SentBytes();
        TurnRoute route = new TurnRoute(new double[] {1, 1}, 100, sent);
        long[] bytes = new long[2];
        for (int number = 0; number < 2000; number++) {
            int partition = route.partitionFor(60);
            if (partition == 0 && ThreadLocalRandom.current().nextBoolean()) {
                route.giveBack(partition, 60);
            } else {
                bytes[partition] += 60;
            }
        }
        assertEquals(bytes[1], bytes[0], 400);
    }

    @Test
    void aPartitionWithoutAShareGetsNothing() {
        TurnRoute route = new TurnRoute(new double[] {0, 1, 0, 3}, 10, new SentBytes());
        for (int number = 0; number < 100; number++) {
            int partition = route.partitionFor(7);
            assertTrue(partition == 1 || partition == 3);
        }
    }

    @Test
    void aRouteThatWasNeverFollowedIsTakenOverAsNew() {
        TurnRoute first = new TurnRoute(new double[] {1, 1}, 10, new SentBytes());
        TurnRoute second = new TurnRoute(new double[] {1, 1}, 10, new SentBytes());
        assertTrue(second.takeOver(first));
        assertEquals(0, second.partitionFor(1));
    }

    @Test
    void sharesThatCantBeAreRefused() {
        for (double[] wrong : new double[][] {{}, {0}, {-1, 2}, {Double.NaN}, {Double.POSITIVE_INFINITY}}) {
            assertThrows(IllegalArgumentException.class, () -> new TurnRoute(wrong, 10, new SentBytes()));
        }
        assertThrows(IllegalArgumentException.class, () -> new TurnRoute(new double[] {1}, 0, new SentBytes()));
    }

    static void inThreads(int count, Runnable task) throws InterruptedException {
        List<Thread> threads = new ArrayList<>();
        for (int number = 0; number < count; number++) {
            threads.add(new Thread(task));
        }
        threads.forEach(Thread::start);
        for (Thread thread : threads) {
            thread.join();
            assertFalse(thread.isAlive());
        }
    }

    private static double[] numbers(Object list) {
        return ((List<?>) list).stream().mapToDouble(each -> ((Number) each).doubleValue()).toArray();
    }
}
