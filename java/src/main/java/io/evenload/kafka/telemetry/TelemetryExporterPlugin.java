package io.evenload.kafka.telemetry;

import org.apache.kafka.server.telemetry.ClientTelemetryContext;
import org.apache.kafka.server.telemetry.ClientTelemetryExporter;
import org.apache.kafka.server.telemetry.ClientTelemetryExporterProvider;
import org.apache.kafka.server.telemetry.ClientTelemetryPayload;

/**
 * The same for brokers from 4.2 on (KIP-1217), which say how often each client pushes. Earlier ones can't load it: they
 * don't know the interfaces that it names.
 */
public final class TelemetryExporterPlugin extends TelemetryPlugin
        implements ClientTelemetryExporterProvider, ClientTelemetryExporter {
    @Override
    public ClientTelemetryExporter clientTelemetryExporter() {
        return this;
    }

    @Override
    public void exportMetrics(ClientTelemetryContext context, ClientTelemetryPayload payload) {
        take(context.authorizableRequestContext(), payload, context.pushIntervalMs());
    }
}
