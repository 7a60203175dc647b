package io.evenload.benchmarks;

import com.sun.management.ThreadMXBean;
import io.evenload.kafka.telemetry.TelemetryPlugin;
import java.lang.management.ManagementFactory;
import java.net.InetAddress;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.Arrays;
import java.util.Locale;
import java.util.Map;
import javax.management.ObjectName;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.server.authorizer.AuthorizableRequestContext;
import org.apache.kafka.server.telemetry.ClientTelemetryPayload;

/**
 * What a push costs a broker: time and memory of the request thread, memory of the thread behind it; a line of JSON.
 *
 * <p>Arguments: a file with a push; pushes a second; how many, after so many, and quicker ones, that Java has compiled
 * what a broker of some days has compiled.
 */
public final class Pushes {
    private static final ObjectName COUNTS = name();
    private static final int WARM_UP_PUSHES = 12_000;
    private static final long WARM_UP_EVERY_NANOS = 1_500_000;

    private Pushes() {}

    public static void main(String[] arguments) throws Exception {
        byte[] pushed = Files.readAllBytes(Paths.get(arguments[0]));
        long everyNanos = 1_000_000_000L / Integer.parseInt(arguments[1]);
        int numPushes = Integer.parseInt(arguments[2]);
        ThreadMXBean memory = (ThreadMXBean) ManagementFactory.getThreadMXBean();
        try (Routes service = new Routes(1)) {
            TelemetryPlugin plugin = new TelemetryPlugin();
            plugin.configure(Map.of("evenload.telemetry.url", service.url(), "node.id", 1));
            run(plugin, pushed, WARM_UP_EVERY_NANOS, WARM_UP_PUSHES);
            awaitForwarded(WARM_UP_PUSHES);
            long behind = threadBehind();
            long behindBefore = memory.getThreadAllocatedBytes(behind);
            long before = memory.getCurrentThreadAllocatedBytes();
            long[] nanos = run(plugin, pushed, everyNanos, numPushes);
            long after = memory.getCurrentThreadAllocatedBytes();
            awaitForwarded(WARM_UP_PUSHES + numPushes);
            long behindAfter = memory.getThreadAllocatedBytes(behind);
            Arrays.sort(nanos);
            System.out.printf(
                    Locale.ROOT,
                    "{\"push_bytes\":%d,\"median_ns\":%d,\"p99_ns\":%d,\"longest_ns\":%d,\"request_bytes\":%d,\"behind_bytes\":%d}%n",
                    pushed.length,
                    nanos[nanos.length / 2],
                    nanos[nanos.length - 1 - nanos.length / 100],
                    nanos[nanos.length - 1],
                    (after - before) / numPushes,
                    (behindAfter - behindBefore) / numPushes);
            plugin.close();
        }
    }

    private static long[] run(TelemetryPlugin plugin, byte[] pushed, long everyNanos, int numPushes)
            throws InterruptedException {
        Payload payload = new Payload(pushed);
        Context context = new Context();
        long[] nanos = new long[numPushes];
        long due = System.nanoTime();
        for (int number = 0; number < numPushes; number++) {
            long wait = due - System.nanoTime();
            if (wait > 0) {
                Thread.sleep(wait / 1_000_000, (int) (wait % 1_000_000));
            }
            due += everyNanos;
            long begun = System.nanoTime();
            plugin.exportMetrics(context, payload);
            nanos[number] = System.nanoTime() - begun;
        }
        return nanos;
    }

    private static void awaitForwarded(long numPushes) throws Exception {
        while (count("Forwarded") < numPushes) {
            if (count("Dropped") + count("Failed") + count("Unreadable") > 0) {
                throw new IllegalStateException("a push was lost");
            }
            Thread.sleep(10);
        }
    }

    private static long threadBehind() {
        return Thread.getAllStackTraces().keySet().stream()
                .filter(thread -> thread.getName().equals("evenload-telemetry"))
                .findFirst()
                .orElseThrow()
                .getId();
    }

    private static long count(String attribute) throws Exception {
        return (Long) ManagementFactory.getPlatformMBeanServer().getAttribute(COUNTS, attribute);
    }

    private static ObjectName name() {
        try {
            return new ObjectName("io.evenload.kafka:type=Telemetry");
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }

    /** As Kafka's own, nothing of it is made when it is asked. */
    private static final class Payload implements ClientTelemetryPayload {
        private final ByteBuffer data;
        private final Uuid id = Uuid.randomUuid();

        Payload(byte[] pushed) {
            data = ByteBuffer.wrap(pushed);
        }

        @Override
        public Uuid clientInstanceId() {
            return id;
        }

        @Override
        public boolean isTerminating() {
            return false;
        }

        @Override
        public String contentType() {
            return "OTLP";
        }

        @Override
        public ByteBuffer data() {
            return data;
        }
    }

    private static final class Context implements AuthorizableRequestContext {
        private static final short PUSH_TELEMETRY = 72;

        @Override
        public String listenerName() {
            return "PLAINTEXT";
        }

        @Override
        public SecurityProtocol securityProtocol() {
            return SecurityProtocol.PLAINTEXT;
        }

        @Override
        public KafkaPrincipal principal() {
            return KafkaPrincipal.ANONYMOUS;
        }

        @Override
        public InetAddress clientAddress() {
            return InetAddress.getLoopbackAddress();
        }

        @Override
        public int requestType() {
            return PUSH_TELEMETRY;
        }

        @Override
        public int requestVersion() {
            return 0;
        }

        @Override
        public String clientId() {
            return "a-client-of-a-benchmark";
        }

        @Override
        public int correlationId() {
            return 1;
        }
    }
}
