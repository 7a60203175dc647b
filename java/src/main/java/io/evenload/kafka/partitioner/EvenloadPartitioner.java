package io.evenload.kafka.partitioner;

import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.producer.Partitioner;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.PartitionInfo;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Follows the shares that a collector service has decided for all who write a topic: {@code
 * partitioner.class=io.evenload.kafka.partitioner.EvenloadPartitioner}, for clients 3.3 to 4.x.
 *
 * <p>Records with a key go where Kafka's own partitioner puts them, unless {@code evenload.spread.keys} says otherwise.
 * Others follow the shares in bytes, a turn of the producer's {@code batch.size} after the other; evenly while the
 * service says nothing that can be used. Nothing is ever thrown at who produces, and nobody waits, but for a topic's
 * first route ({@code evenload.first.route.timeout.ms}).
 *
 * <p>As with any partitioner of one's own, Kafka's own avoidance of slow brokers (KIP-794) is off; the service's score
 * function {@code latency} is in its place.
 */
public final class EvenloadPartitioner implements Partitioner {
    private static final Logger LOG = LoggerFactory.getLogger(EvenloadPartitioner.class);
    private static final int NAME_MAX_CHARS = 200;

    private final Map<String, TopicTurns> topics = new ConcurrentHashMap<>();
    private final LatestAnswers latest = new LatestAnswers();
    private final boolean isAskedTwice = isAskedTwice();
    private final AtomicLong numFailures = new AtomicLong();
    private final AtomicBoolean isClosed = new AtomicBoolean();
    private Settings settings;
    private RouteReader reader;
    private String name;

    @Override
    public void configure(Map<String, ?> configs) {
        settings = Settings.of(configs);
        String who = "java/" + RouteReader.PROCESS + "/" + settings.clientId; // telemetry_collector/reports.py
        // Two class loaders, or two containers, may name their producers alike.
        String random = Long.toHexString(ThreadLocalRandom.current().nextLong());
        name = who.substring(0, Math.min(NAME_MAX_CHARS, who.length())) + "#" + random;
        reader = RouteReader.open(settings);
    }

    @Override
    public int partition(String topic, Object key, byte[] keyBytes, Object value, byte[] valueBytes, Cluster cluster) {
        try {
            if (isAskedTwice) {
                latest.takeBackUnused(topic, valueBytes);
            }
            if (keyBytes != null && !settings.spreadsKeys) {
                return Murmur2.partition(keyBytes, cluster.partitionsForTopic(topic).size());
            }
            TopicTurns turns = topics.get(topic);
            if (turns == null) {
                turns = opened(topic, cluster);
            }
            long sizeBytes = (keyBytes == null ? 0 : keyBytes.length) + (long) (valueBytes == null ? 0 : valueBytes.length);
            int partition = turns.partition(sizeBytes, cluster);
            if (isAskedTwice) {
                latest.keep(turns, partition, sizeBytes, valueBytes);
            }
            return partition;
        } catch (Throwable error) { // whoever produces goes on, whatever is wrong here
            return evenly(topic, cluster, error);
        }
    }

    /**
     * A client before 4.0 has asked for the first record of a batch, and is about to ask again: the first answer isn't
     * used. It says so of records with a key or a partition of their own, too, which is why the next question decides.
     *
     * <p>Later clients have no such method, so it overrides nothing.
     */
    public void onNewBatch(String topic, Cluster cluster, int previousPartition) {
        latest.maybeUnused(topic, previousPartition);
    }

    @Override
    public void close() {
        if (reader != null && isClosed.compareAndSet(false, true)) {
            topics.values().forEach(reader::forget);
            reader.close();
        }
    }

    private TopicTurns opened(String topic, Cluster cluster) {
        return topics.computeIfAbsent(topic, added -> {
            TopicTurns turns = new TopicTurns(added, TopicTurns.idOf(cluster), settings, reader, name);
            reader.follow(turns);
            return turns;
        });
    }

    private int evenly(String topic, Cluster cluster, Throwable error) {
        long number = numFailures.getAndIncrement();
        try {
            if (number == 0) {
                LOG.error("topic {}: shares can't be followed, so partitions take turns", topic, error);
            }
            List<PartitionInfo> writable = cluster.availablePartitionsForTopic(topic);
            if (!writable.isEmpty()) {
                return writable.get((int) (number % writable.size())).partition();
            }
        } catch (Throwable another) { // there is nothing that it could be told to
            return 0;
        }
        return 0;
    }

    private static boolean isAskedTwice() {
        try {
            Partitioner.class.getMethod("onNewBatch", String.class, Cluster.class, int.class);
            return true;
        } catch (NoSuchMethodException error) {
            return false;
        }
    }
}
