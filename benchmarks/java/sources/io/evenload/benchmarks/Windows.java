package io.evenload.benchmarks;

import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.Arrays;
import java.util.Locale;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Short windows of writing by a schedule, as benchmarks/windows.py has them, with Kafka's Java client: each with a
 * producer of its own, in a JVM that stays. A record's time is from when it was due until it is acknowledged.
 *
 * <p>Reads a line for each window and answers with a line of JSON. (fields between tabs) "window SETTINGS TOPIC PARTITIONS RATE BYTES LEAD_S
 * WINDOW_S"; "idle SETTINGS TOPIC PARTITIONS SECONDS": what a producer costs that has nothing to write.
 */
public final class Windows {
    private static final double SECOND = 1e9;
    private static final double MS = 1e6;

    private Windows() {}

    public static void main(String[] arguments) throws Exception {
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] told = line.split("\t");
            Properties settings = new Properties();
            try (BufferedReader file = Files.newBufferedReader(Paths.get(told[1]))) {
                settings.load(file);
            }
            try (KafkaProducer<byte[], byte[]> producer =
                    new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
                double firstS = first(producer, told[2], Integer.parseInt(told[3]));
                if (told[0].equals("idle")) {
                    System.out.println(idle(Double.parseDouble(told[4])));
                } else {
                    System.out.println(window(producer, told, firstS));
                }
            }
        }
    }

    /** One record to each partition, so that every broker is connected to, and one to wherever it goes; seconds. */
    private static double first(KafkaProducer<byte[], byte[]> producer, String topic, int numPartitions) {
        long begun = System.nanoTime();
        for (int partition = 0; partition < numPartitions; partition++) {
            producer.send(new ProducerRecord<>(topic, partition, null, new byte[8]));
        }
        producer.send(new ProducerRecord<>(topic, new byte[8]));
        producer.flush();
        return (System.nanoTime() - begun) / SECOND;
    }

    private static String window(KafkaProducer<byte[], byte[]> producer, String[] told, double firstS) {
        String topic = told[2];
        double recordsPerNano = Double.parseDouble(told[4]) / SECOND;
        byte[] value = new byte[Integer.parseInt(told[5])];
        int numLead = (int) (recordsPerNano * Double.parseDouble(told[6]) * SECOND);
        int numRecords = numLead + (int) (recordsPerNano * Double.parseDouble(told[7]) * SECOND);
        long[] reported = new long[numRecords];
        AtomicReference<Exception> failure = new AtomicReference<>();
        long begun = System.nanoTime();
        for (int sent = 0; sent < numRecords; ) {
            int due = Math.min(numRecords, 1 + (int) ((System.nanoTime() - begun) * recordsPerNano));
            for (; sent < due; sent++) {
                int number = sent;
                producer.send(new ProducerRecord<>(topic, value), (stored, error) -> {
                    reported[number] = System.nanoTime();
                    if (error != null) {
                        failure.set(error);
                    }
                });
            }
            LockSupport.parkNanos(100_000);
        }
        producer.flush();
        if (failure.get() != null) {
            throw new IllegalStateException("a record was not stored", failure.get());
        }
        double[] latencies = new double[numRecords - numLead];
        for (int number = numLead; number < numRecords; number++) {
            latencies[number - numLead] = reported[number] - begun - number / recordsPerNano;
        }
        Arrays.sort(latencies);
        return String.format(
                Locale.ROOT,
                "{\"first_s\":%.6f,\"p50_ms\":%.6f,\"p99_ms\":%.6f,\"batch_bytes\":%.1f}",
                firstS, at(latencies, 0.5) / MS, at(latencies, 0.99) / MS, metric(producer, "batch-size-avg"));
    }

    private static String idle(double seconds) throws InterruptedException {
        OperatingSystemMXBean system = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        long before = system.getProcessCpuTime();
        Thread.sleep((long) (seconds * 1000));
        return String.format(Locale.ROOT, "{\"cores\":%.6f}", (system.getProcessCpuTime() - before) / SECOND / seconds);
    }

    private static double at(double[] sorted, double part) {
        return sorted[(int) Math.min(sorted.length - 1, part * sorted.length)];
    }

    private static double metric(KafkaProducer<byte[], byte[]> producer, String name) {
        return producer.metrics().entrySet().stream()
                .filter(entry -> entry.getKey().name().equals(name) && entry.getKey().group().equals("producer-metrics"))
                .mapToDouble(entry -> (Double) entry.getValue().metricValue())
                .findFirst()
                .orElse(Double.NaN);
    }
}
