package io.evenload.kafka.telemetry;

import java.net.InetAddress;
import java.nio.ByteBuffer;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.server.authorizer.AuthorizableRequestContext;
import org.apache.kafka.server.telemetry.ClientTelemetryPayload;

/**
 * What one client pushed, copied out of the request: its buffer is the broker's, and is used again.
 *
 * <p>A request thread makes one, so all else that can be done later is: who pushed is written out by whoever asks.
 */
final class Push {
    private static final int OVERHEAD_BYTES = 500; // of the objects, about
    private static final int TEXT_MAX_CHARS = 300;

    final byte[] payload;
    final boolean isTerminating;

    /** How often the client pushes; 0 where the broker doesn't say (before 4.2). */
    final int intervalMs;

    private final Uuid clientInstanceId;
    private final String clientId;
    private final KafkaPrincipal principal;
    private final InetAddress address;

    Push(AuthorizableRequestContext context, ClientTelemetryPayload pushed, int intervalMs) {
        ByteBuffer data = pushed.data().duplicate();
        payload = new byte[data.remaining()];
        data.get(payload);
        clientInstanceId = pushed.clientInstanceId();
        clientId = context.clientId();
        principal = context.principal();
        address = context.clientAddress();
        isTerminating = pushed.isTerminating();
        this.intervalMs = intervalMs;
    }

    String clientInstanceId() {
        return bounded(clientInstanceId);
    }

    String clientId() {
        return bounded(clientId);
    }

    String principal() {
        return bounded(principal);
    }

    String address() {
        return address == null ? "" : address.getHostAddress();
    }

    /** What a push takes in the queue. */
    int sizeBytes() {
        int nameChars = principal == null || principal.getName() == null ? 0 : principal.getName().length();
        return payload.length + OVERHEAD_BYTES + 2 * (nameChars + (clientId == null ? 0 : clientId.length()));
    }

    private static String bounded(Object said) {
        String text = String.valueOf(said);
        return text.length() <= TEXT_MAX_CHARS ? text : text.substring(0, TEXT_MAX_CHARS);
    }
}
