package io.evenload.kafka.partitioner;

import java.lang.ref.WeakReference;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.PartitionInfo;

/**
 * The turns of one topic that one producer writes: by the route that a service has decided, as far as the client knows
 * its partitions and their leaders; evenly while there is none.
 *
 * <p>Only when a turn ends it is looked whether anything has changed: what the client knows of the cluster, the route,
 * or that it is over. Any thread may call anything; but for the wait for a topic's first route, nobody waits.
 */
final class TopicTurns {
    final String topic;

    /** For those who mustn't keep it. */
    final WeakReference<TopicTurns> weakly = new WeakReference<>(this);

    /** Of the cluster that the client writes to, as far as it knows; null: not known. */
    final String clusterId;

    private final Settings settings;
    private final RouteReader reader;
    private final String producer;
    private final SentBytes sent = new SentBytes();
    private final AtomicBoolean isLooking = new AtomicBoolean();
    private boolean hasWaited;
    private volatile TurnRoute route;
    private volatile String reason;
    private volatile double[] shares = new double[0];
    private volatile int numFallbacks;

    // Whoever is looking changes these.
    private Cluster cluster;
    private RouteAnswer answer;

    // The reader's own.
    long reportedBytes;
    long reportedAtNanos = System.nanoTime();
    long seenBytes = -1;

    TopicTurns(String topic, String clusterId, Settings settings, RouteReader reader, String producer) {
        this.topic = topic;
        this.clusterId = clusterId;
        this.settings = settings;
        this.reader = reader;
        this.producer = producer;
    }

    /** Where a record of so many bytes goes. */
    int partition(long sizeBytes, Cluster known) {
        TurnRoute now = route;
        if (now == null) {
            now = begun(known);
        }
        int partition = now.withinTurn(sizeBytes);
        if (partition != TurnRoute.NONE) {
            return partition;
        }
        if (isLooking.compareAndSet(false, true)) {
            try {
                look(known);
            } finally {
                isLooking.set(false);
            }
        }
        return route.partitionFor(sizeBytes);
    }

    /** Of what went to a partition, this did not go there after all. */
    void giveBack(int partition, long sizeBytes) {
        TurnRoute now = route;
        if (now != null) {
            now.giveBack(partition, sizeBytes);
        }
    }

    /** Payload so far of turns that are over, which is what is told. */
    long toldBytes() {
        return sent.total();
    }

    /** Payload so far. */
    long sentBytes() {
        TurnRoute now = route;
        return sent.total() + (now == null ? 0 : now.underWayBytes());
    }

    /** What the service is told, as JSON: telemetry_collector/reports.py has the fields. */
    String report() {
        long total = toldBytes();
        String why = reason;
        Long expected = settings.expectBytes;
        StringBuilder json = new StringBuilder("{\"producer\":").append(Json.quoted(producer));
        json.append(",\"topic\":").append(Json.quoted(topic));
        json.append(",\"shares\":{");
        double[] followed = shares;
        String comma = "";
        for (int partition = 0; partition < followed.length; partition++) {
            if (followed[partition] > 0) {
                json.append(comma).append('"').append(partition).append("\":").append(followed[partition]);
                comma = ",";
            }
        }
        json.append("},\"reason\":").append(why == null ? "null" : Json.quoted(why));
        json.append(",\"sent_bytes\":").append(Math.max(0, total));
        json.append(",\"sent_bytes_by_partition\":").append(sent.toJson());
        json.append(",\"remaining_bytes\":").append(expected == null ? "null" : Math.max(0, expected - total));
        return json.append(",\"num_fallbacks\":").append(numFallbacks).append('}').toString();
    }

    /** The first route; the topic's first record waits for it, and whoever comes meanwhile. */
    private synchronized TurnRoute begun(Cluster known) {
        if (!hasWaited) {
            hasWaited = true;
            reader.awaitFirst(topic, settings.firstRouteTimeoutMs);
        }
        if (route == null) {
            look(known);
        }
        return route;
    }

    private void look(Cluster known) {
        HeardRoute heard = reader.heard(topic);
        String why = whyNot(heard, known);
        RouteAnswer now = why == null ? heard.answer : null;
        TurnRoute before = route;
        if (before != null && now == answer && known == cluster) {
            reason = why == null ? now.reason : why;
            return;
        }
        double[] possible = restricted(now == null ? new double[0] : now.shares, known.partitionsForTopic(topic));
        long batchBytes = now == null ? settings.batchBytes : Math.min(settings.batchBytes, now.turnMaxBytes);
        TurnRoute next = new TurnRoute(possible, batchBytes, sent);
        if (before == null) {
            // Producers that start together would all send their first batches to one broker.
            next.skipTurns(ThreadLocalRandom.current().nextInt(possible.length));
        } else if (!next.takeOver(before)) {
            return; // another thread is ending a turn there: the next turn's end is soon enough
        }
        route = next;
        String wasFor = reason;
        reason = why == null ? now.reason : why;
        if (reason != null && (before == null || wasFor == null)) {
            numFallbacks++;
        }
        answer = now;
        cluster = known;
        double total = Arrays.stream(possible).sum();
        shares = Arrays.stream(possible).map(share -> share / total).toArray();
    }

    /** Why a route can't be followed; null: it can. */
    private static String whyNot(HeardRoute heard, Cluster known) {
        if (heard == null) {
            return "no_route";
        }
        if (heard.isOver(System.nanoTime())) {
            return "expired";
        }
        return isOfAnother(heard.answer.clusterId, idOf(known)) ? "other_cluster" : null;
    }

    /** Whether these are two clusters, as far as both are known. */
    static boolean isOfAnother(String heard, String ours) {
        return ours != null && !heard.isEmpty() && !heard.equals(ours);
    }

    static String idOf(Cluster known) {
        return known.clusterResource() == null ? null : known.clusterResource().clusterId();
    }

    /** The same shares over those of the partitions that have a leader; even ones where nothing is left of them. */
    private static double[] restricted(double[] wanted, List<PartitionInfo> partitions) {
        int count = 1;
        for (PartitionInfo each : partitions) {
            count = Math.max(count, each.partition() + 1);
        }
        double[] shares = new double[count];
        double[] even = new double[count];
        boolean hasShares = false;
        boolean hasLeaders = false;
        for (PartitionInfo each : partitions) {
            if (each.leader() == null) {
                continue;
            }
            int partition = each.partition();
            hasLeaders = true;
            even[partition] = 1.0;
            shares[partition] = partition < wanted.length ? wanted[partition] : 0.0;
            hasShares |= shares[partition] > 0;
        }
        if (hasShares) {
            return shares;
        }
        if (!hasLeaders) {
            Arrays.fill(even, 1.0);
        }
        return even;
    }
}
