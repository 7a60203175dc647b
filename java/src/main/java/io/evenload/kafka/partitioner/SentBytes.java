package io.evenload.kafka.partitioner;

import java.util.Arrays;

/** Payload that went to each partition of a topic so far, told once a turn. Any thread may call anything. */
final class SentBytes {
    private long[] byPartition = new long[0];
    private long total;

    synchronized void add(int partition, long sizeBytes) {
        if (partition >= byPartition.length) {
            byPartition = Arrays.copyOf(byPartition, Math.max(partition + 1, 2 * byPartition.length));
        }
        byPartition[partition] += sizeBytes;
        total += sizeBytes;
    }

    synchronized long total() {
        return total;
    }

    /** As a JSON object, by partition; one of which more was given back than is told yet is left out. */
    synchronized String toJson() {
        StringBuilder json = new StringBuilder("{");
        for (int partition = 0; partition < byPartition.length; partition++) {
            if (byPartition[partition] > 0) {
                json.append(json.length() > 1 ? "," : "");
                json.append('"').append(partition).append("\":").append(byPartition[partition]);
            }
        }
        return json.append('}').toString();
    }
}
