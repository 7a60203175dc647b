package io.evenload.kafka.partitioner;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicLongArray;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * A producer at a test's command (tests/integration/jvm): of each line it reads how many records to send, and answers
 * with how many each partition has got so far, and how many failed.
 *
 * <p>Arguments: a file of settings, a topic, the size of a record's value, and "keyed" if records have keys.
 */
public final class Sender {
    private static final int PARTITIONS_MAX = 1000;

    private Sender() {}

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        try (BufferedReader file = Files.newBufferedReader(Paths.get(arguments[0]))) {
            settings.load(file);
        }
        byte[] value = new byte[Integer.parseInt(arguments[2])];
        boolean isKeyed = arguments.length > 3;
        AtomicLongArray stored = new AtomicLongArray(PARTITIONS_MAX);
        AtomicLong failed = new AtomicLong();
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
            long number = 0;
            for (String line = commands.readLine(); line != null; line = commands.readLine()) {
                for (long last = number + Long.parseLong(line); number < last; number++) {
                    byte[] key = isKeyed ? ByteBuffer.allocate(8).putLong(number).array() : null;
                    producer.send(new ProducerRecord<>(arguments[1], key, value), (told, error) -> {
                        if (error == null) {
                            stored.incrementAndGet(told.partition());
                        } else {
                            failed.incrementAndGet();
                        }
                    });
                }
                producer.flush();
                System.out.println(answer(stored, failed.get()));
            }
        }
    }

    private static String answer(AtomicLongArray stored, long failed) {
        StringBuilder answer = new StringBuilder("{\"failed\":").append(failed).append(",\"stored\":{");
        String comma = "";
        for (int partition = 0; partition < stored.length(); partition++) {
            if (stored.get(partition) > 0) {
                answer.append(comma).append('"').append(partition).append("\":").append(stored.get(partition));
                comma = ",";
            }
        }
        return answer.append("}}").toString();
    }
}
