package io.evenload.kafka.telemetry;

import java.lang.management.ManagementFactory;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.concurrent.atomic.AtomicBoolean;
import javax.management.JMException;
import javax.management.MBeanServer;
import javax.management.ObjectName;
import org.apache.kafka.common.metrics.KafkaMetric;
import org.apache.kafka.common.metrics.MetricsContext;
import org.apache.kafka.common.metrics.MetricsReporter;
import org.apache.kafka.server.authorizer.AuthorizableRequestContext;
import org.apache.kafka.server.telemetry.ClientTelemetry;
import org.apache.kafka.server.telemetry.ClientTelemetryPayload;
import org.apache.kafka.server.telemetry.ClientTelemetryReceiver;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Hands on what clients push to this broker (KIP-714), for brokers 3.7 to 4.x: in {@code metric.reporters}, beside
 * {@code org.apache.kafka.common.metrics.JmxReporter}. From 4.2 on, {@link TelemetryExporterPlugin} knows more.
 *
 * <p>Nothing is ever thrown at the broker: it would answer INVALID_RECORD, and clients would stop pushing until they are
 * started again. A setting that can't be used is a sentence in the log, and pushes are dropped.
 */
@SuppressWarnings({"deprecation", "removal"}) // of 4.2, for what comes with 5.0
public class TelemetryPlugin implements MetricsReporter, ClientTelemetry, ClientTelemetryReceiver {
    private static final Logger LOG = LoggerFactory.getLogger(TelemetryPlugin.class);
    private static final String COUNTS = "io.evenload.kafka:type=Telemetry";

    private final TelemetryCounts counts = new TelemetryCounts();
    private volatile Forwarder forwarder;
    private volatile String configuredId = "";
    private final AtomicBoolean isShown = new AtomicBoolean();

    @Override
    public void configure(Map<String, ?> configs) {
        Object id = configs.get("node.id");
        configuredId = Objects.toString(id == null ? configs.get("broker.id") : id, "");
        try {
            forwarder = new Forwarder(TelemetrySettings.of(configs), counts, configuredId);
        } catch (RuntimeException | LinkageError error) { // the broker starts all the same
            LOG.error("clients' metrics aren't forwarded: {}", error.getMessage());
        }
    }

    @Override
    public void contextChange(MetricsContext context) {
        Forwarder known = forwarder;
        if (known != null) {
            Map<String, String> labels = context.contextLabels();
            String broker = labels.getOrDefault("kafka.broker.id", labels.getOrDefault("kafka.node.id", configuredId));
            known.name(broker, labels.getOrDefault("kafka.cluster.id", ""));
        }
    }

    @Override
    public ClientTelemetryReceiver clientReceiver() {
        return this;
    }

    @Override
    public void exportMetrics(AuthorizableRequestContext context, ClientTelemetryPayload payload) {
        take(context, payload, 0);
    }

    /** In a request thread. */
    final void take(AuthorizableRequestContext context, ClientTelemetryPayload payload, int intervalMs) {
        try {
            showCounts();
            Forwarder known = forwarder;
            if (known == null) {
                counts.dropped.incrementAndGet();
            } else {
                known.take(context, payload, intervalMs);
            }
        } catch (Throwable error) { // or the client would be silenced
            counts.dropped.incrementAndGet();
        }
    }

    @Override
    public void init(List<KafkaMetric> metrics) {
        // A broker's own metrics are others' business.
    }

    /** From the first push on: a node that is a controller, too, has another of these, which gets none. */
    private void showCounts() {
        if (!isShown.compareAndSet(false, true)) {
            return;
        }
        try {
            MBeanServer server = ManagementFactory.getPlatformMBeanServer();
            ObjectName name = new ObjectName(COUNTS);
            if (server.isRegistered(name)) {
                server.unregisterMBean(name); // of one that was taken out of the configuration
            }
            server.registerMBean(counts, name);
        } catch (JMException | RuntimeException error) {
            LOG.warn("counts of clients' metrics aren't shown over JMX: {}", error.getMessage());
        }
    }

    @Override
    public void metricChange(KafkaMetric metric) {
        // As above.
    }

    @Override
    public void metricRemoval(KafkaMetric metric) {
        // As above.
    }

    @Override
    public void close() {
        Forwarder known = forwarder;
        if (known != null) {
            known.close();
        }
    }
}
