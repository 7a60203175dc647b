package io.evenload.benchmarks;

import io.evenload.kafka.partitioner.EvenloadPartitioner;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.producer.internals.BuiltInChoice;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;

/**
 * What a choice of a partition costs, Kafka's own and evenload's in turn; prints a line of JSON.
 *
 * <p>Arguments: how many partitions; how many rounds.
 */
public final class Choices {
    private static final String TOPIC = "events";
    private static final int RECORD_BYTES = 100;
    private static final int BATCH_BYTES = 16_384;
    private static final int CHOICES_A_ROUND = 200_000;
    private static final int WARM_UP_ROUNDS = 20;
    private static final int NUM_THREADS = 4;
    private static final int NUM_TIMED = 2_000_000;

    private Choices() {}

    /** Somebody who says where a record of {@link #RECORD_BYTES} goes. */
    interface Chooser {
        int choose();
    }

    public static void main(String[] arguments) throws Exception {
        int numPartitions = Integer.parseInt(arguments[0]);
        int numRounds = Integer.parseInt(arguments[1]);
        Cluster cluster = cluster(numPartitions);
        Map<String, Object> told = new LinkedHashMap<>();
        try (Routes routes = new Routes(numPartitions)) {
            try (EvenloadPartitioner ours = ours(routes, BATCH_BYTES);
                    EvenloadPartitioner ending = ours(routes, 1)) {
                Chooser us = chooser(ours, cluster);
                BuiltInChoice builtIn = new BuiltInChoice(TOPIC, BATCH_BYTES, cluster);
                Chooser them = () -> builtIn.choose(RECORD_BYTES);
                inTurn(told, "", us, them, numRounds);
                BuiltInChoice switching = new BuiltInChoice(TOPIC, 1, cluster);
                inTurn(told, "ending_", chooser(ending, cluster), () -> switching.choose(RECORD_BYTES), numRounds);
                threads(told, us, them, numRounds);
                longest(told, us, them);
            }
        }
        System.out.println(json(told));
    }

    private static Chooser chooser(EvenloadPartitioner partitioner, Cluster cluster) {
        byte[] value = new byte[RECORD_BYTES];
        return () -> partitioner.partition(TOPIC, null, null, null, value, cluster);
    }

    private static EvenloadPartitioner ours(Routes routes, int batchBytes) {
        EvenloadPartitioner partitioner = new EvenloadPartitioner();
        partitioner.configure(Map.of(
                "evenload.url", routes.url(), "batch.size", batchBytes, "evenload.first.route.timeout.ms", 60_000));
        return partitioner;
    }

    /** Nanoseconds of a choice: for each round, the mean of many. */
    private static void inTurn(Map<String, Object> told, String prefix, Chooser us, Chooser them, int numRounds) {
        List<Double> ours = new ArrayList<>();
        List<Double> theirs = new ArrayList<>();
        for (int round = -WARM_UP_ROUNDS; round < numRounds; round++) {
            double first = nanos(us);
            double second = nanos(them);
            if (round >= 0) {
                ours.add(first);
                theirs.add(second);
            }
        }
        told.put(prefix + "ours_ns", ours);
        told.put(prefix + "built_in_ns", theirs);
    }

    private static double nanos(Chooser chooser) {
        int sum = 0;
        long begun = System.nanoTime();
        for (int number = 0; number < CHOICES_A_ROUND; number++) {
            sum += chooser.choose();
        }
        double spent = System.nanoTime() - begun;
        return sum < 0 ? Double.NaN : spent / CHOICES_A_ROUND;
    }

    /** Processor time of a choice with several threads at a time, as there may be fewer processors than these. */
    private static void threads(Map<String, Object> told, Chooser us, Chooser them, int numRounds) throws Exception {
        List<Double> ours = new ArrayList<>();
        List<Double> theirs = new ArrayList<>();
        for (int round = 0; round < numRounds; round++) {
            ours.add(nanosOfThreads(us));
            theirs.add(nanosOfThreads(them));
        }
        told.put("threads_ours_ns", ours);
        told.put("threads_built_in_ns", theirs);
    }

    private static double nanosOfThreads(Chooser chooser) throws InterruptedException {
        ThreadMXBean clock = ManagementFactory.getThreadMXBean();
        double[] spent = new double[NUM_THREADS];
        List<Thread> threads = new ArrayList<>();
        for (int place = 0; place < NUM_THREADS; place++) {
            int mine = place;
            threads.add(new Thread(() -> {
                long begun = clock.getCurrentThreadCpuTime();
                nanos(chooser);
                spent[mine] = clock.getCurrentThreadCpuTime() - begun;
            }));
        }
        threads.forEach(Thread::start);
        for (Thread thread : threads) {
            thread.join();
        }
        return Arrays.stream(spent).sum() / NUM_THREADS / CHOICES_A_ROUND;
    }

    /** Each call by itself, both in turn. */
    private static void longest(Map<String, Object> told, Chooser us, Chooser them) {
        long[] ours = new long[NUM_TIMED];
        long[] theirs = new long[NUM_TIMED];
        for (int number = 0; number < NUM_TIMED; number++) {
            long begun = System.nanoTime();
            us.choose();
            long between = System.nanoTime();
            them.choose();
            ours[number] = between - begun;
            theirs[number] = System.nanoTime() - between;
        }
        told.put("longest_ours_ns", tail(ours));
        told.put("longest_built_in_ns", tail(theirs));
    }

    /** One in a hundred, in ten thousand, and the longest. */
    private static List<Double> tail(long[] nanos) {
        Arrays.sort(nanos);
        List<Double> tail = new ArrayList<>();
        for (int seldom : new int[] {100, 10_000}) {
            tail.add((double) nanos[nanos.length - 1 - nanos.length / seldom]);
        }
        tail.add((double) nanos[nanos.length - 1]);
        return tail;
    }

    private static Cluster cluster(int numPartitions) {
        Node node = new Node(1, "localhost", 9092);
        List<PartitionInfo> partitions = new ArrayList<>();
        for (int partition = 0; partition < numPartitions; partition++) {
            partitions.add(new PartitionInfo(TOPIC, partition, node, new Node[] {node}, new Node[] {node}));
        }
        return new Cluster(
                null, Collections.singletonList(node), partitions, Collections.emptySet(), Collections.emptySet());
    }

    private static String json(Map<String, Object> told) {
        StringBuilder json = new StringBuilder("{");
        told.forEach((name, numbers) ->
                json.append(json.length() > 1 ? "," : "").append('"').append(name).append("\":").append(numbers));
        return json.append('}').toString();
    }
}
