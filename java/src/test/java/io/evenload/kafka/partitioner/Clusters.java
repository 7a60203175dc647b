package io.evenload.kafka.partitioner;

import java.util.Collections;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.PartitionInfo;

/** What a client knows of brokers. */
final class Clusters {
    private Clusters() {}

    /** One broker, which leads the topic's one partition. */
    static Cluster ofOnePartition(String topic) {
        Node node = new Node(1, "localhost", 9092);
        PartitionInfo partition = new PartitionInfo(topic, 0, node, new Node[] {node}, new Node[] {node});
        return new Cluster(
                null,
                Collections.singletonList(node),
                Collections.singletonList(partition),
                Collections.emptySet(),
                Collections.emptySet());
    }
}
