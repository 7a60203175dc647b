package org.apache.kafka.clients.producer.internals;

import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.utils.LogContext;

/** Kafka's own choice of a partition (KIP-794), called as its producer calls it for a record without a key. */
public final class BuiltInChoice {
    private final BuiltInPartitioner partitioner;
    private final Cluster cluster;

    /** For a topic of a cluster, with turns of a batch. */
    public BuiltInChoice(String topic, int batchBytes, Cluster cluster) {
        partitioner = new BuiltInPartitioner(new LogContext(), topic, batchBytes);
        this.cluster = cluster;
    }

    /** Where a record of so many bytes goes. */
    public int choose(int sizeBytes) {
        BuiltInPartitioner.StickyPartitionInfo info = partitioner.peekCurrentPartitionInfo(cluster);
        partitioner.updatePartitionInfo(info, sizeBytes, cluster, true);
        return info.partition();
    }
}
