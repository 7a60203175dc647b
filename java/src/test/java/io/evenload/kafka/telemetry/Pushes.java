package io.evenload.kafka.telemetry;

import java.io.ByteArrayOutputStream;
import java.lang.reflect.Proxy;
import java.net.InetAddress;
import java.nio.ByteBuffer;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.server.authorizer.AuthorizableRequestContext;
import org.apache.kafka.server.telemetry.ClientTelemetryPayload;

/** What a broker hands to the plugin. */
final class Pushes {
    private Pushes() {}

    static AuthorizableRequestContext context() {
        return proxy(AuthorizableRequestContext.class, name -> {
            switch (name) {
                case "clientId":
                    return "client";
                case "principal":
                    return KafkaPrincipal.ANONYMOUS;
                case "clientAddress":
                    return InetAddress.getLoopbackAddress();
                default:
                    throw new UnsupportedOperationException(name);
            }
        });
    }

    /** A payload that lies between other bytes of a buffer. */
    static ClientTelemetryPayload payload(byte[] metrics) {
        ByteBuffer request = ByteBuffer.allocate(metrics.length + 20);
        request.position(10);
        request.put(metrics);
        request.flip().position(10);
        Uuid id = Uuid.randomUuid();
        return proxy(ClientTelemetryPayload.class, name -> {
            switch (name) {
                case "data":
                    return request;
                case "clientInstanceId":
                    return id;
                case "isTerminating":
                    return false;
                default:
                    throw new UnsupportedOperationException(name);
            }
        });
    }

    /** MetricsData of so many bytes, and some more. */
    static byte[] metrics(int sizeBytes) {
        ByteArrayOutputStream scope = new ByteArrayOutputStream();
        writeLength(scope, 2, sizeBytes);
        scope.write(new byte[sizeBytes], 0, sizeBytes);
        ByteArrayOutputStream metrics = new ByteArrayOutputStream();
        writeLength(metrics, 1, scope.size());
        metrics.write(scope.toByteArray(), 0, scope.size());
        return metrics.toByteArray();
    }

    private static void writeLength(ByteArrayOutputStream out, int field, int length) {
        out.write(field << 3 | 2);
        int left = length;
        while (left > 0x7f) {
            out.write(left & 0x7f | 0x80);
            left >>>= 7;
        }
        out.write(left);
    }

    interface Answers {
        Object answer(String method);
    }

    static <T> T proxy(Class<T> type, Answers answers) {
        Object proxy = Proxy.newProxyInstance(
                type.getClassLoader(), new Class<?>[] {type}, (self, method, arguments) -> answers.answer(method.getName()));
        return type.cast(proxy);
    }
}
