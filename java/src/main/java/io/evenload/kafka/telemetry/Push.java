package io.evenload.kafka.telemetry;

import java.nio.ByteBuffer;
import org.apache.kafka.server.authorizer.AuthorizableRequestContext;
import org.apache.kafka.server.telemetry.ClientTelemetryPayload;

/** What one client pushed, copied out of the request: its buffer is the broker's, and is used again. */
final class Push {
    private static final int OVERHEAD_BYTES = 400; // of the objects, about
    private static final int TEXT_MAX_CHARS = 300;

    final byte[] payload;
    final String clientInstanceId;
    final String clientId;
    final String principal;
    final String address;
    final boolean isTerminating;

    /** How often the client pushes; 0 where the broker doesn't say (before 4.2). */
    final int intervalMs;

    Push(AuthorizableRequestContext context, ClientTelemetryPayload pushed, int intervalMs) {
        ByteBuffer data = pushed.data().duplicate();
        payload = new byte[data.remaining()];
        data.get(payload);
        clientInstanceId = bounded(pushed.clientInstanceId());
        clientId = bounded(context.clientId());
        principal = bounded(context.principal());
        address = context.clientAddress() == null ? "" : context.clientAddress().getHostAddress();
        isTerminating = pushed.isTerminating();
        this.intervalMs = intervalMs;
    }

    /** What a push takes in the queue. */
    int sizeBytes() {
        return payload.length + OVERHEAD_BYTES + 2 * (clientId.length() + principal.length());
    }

    private static String bounded(Object said) {
        String text = String.valueOf(said);
        return text.length() <= TEXT_MAX_CHARS ? text : text.substring(0, TEXT_MAX_CHARS);
    }
}
