package io.evenload.kafka.telemetry;

import static org.junit.jupiter.api.Assertions.assertDoesNotThrow;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.BooleanSupplier;
import org.apache.kafka.server.telemetry.ClientTelemetryPayload;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

class ForwarderTest {
    private static final byte[] SMALL = Pushes.metrics(100);

    private final TelemetryCounts counts = new TelemetryCounts();
    private FakeService service;
    private Forwarder forwarder;

    @BeforeEach
    void open() throws Exception {
        service = new FakeService();
    }

    @AfterEach
    void close() {
        if (forwarder != null) {
            forwarder.close();
        }
        service.close();
    }

    @Test
    void pushesAreHandedOnWithTheTokenOfTheMoment(@TempDir Path folder) throws Exception {
        Path token = Files.writeString(folder.resolve("token"), "first\n");
        forwarder = forwarder(Map.of("evenload.telemetry.token.file", token.toString()));
        take(SMALL);
        await(() -> counts.getForwarded() == 1);
        Files.writeString(token, "second\n");
        take(SMALL);
        await(() -> counts.getForwarded() == 2);
        assertEquals(List.of("Bearer first", "Bearer second"), service.tokens);
    }

    @Test
    void noRequestIsLargerThanTheServiceTakes() throws Exception {
        forwarder = forwarder(Map.of());
        int numPushes = 5;
        for (int number = 0; number < numPushes; number++) {
            take(Pushes.metrics(400 << 10));
        }
        await(() -> counts.getForwarded() == numPushes);
        long sum = 0;
        for (byte[] body : service.bodies) {
            assertTrue(body.length <= 1 << 20, "a request of " + body.length + " bytes");
            sum += body.length;
        }
        assertTrue(sum > numPushes * (400L << 10));
    }

    @Test
    void whatIsUnreadableIsCountedAndCostsNobodyElse() throws Exception {
        forwarder = forwarder(Map.of());
        take(new byte[] {0x0a, 5, 1});
        take(Pushes.metrics(2 << 20));
        take(SMALL);
        await(() -> counts.getForwarded() == 1 && counts.getUnreadable() == 2);
    }

    @Test
    void aServiceInTroubleIsLeftAloneAndTriedAgain() throws Exception {
        forwarder = forwarder(Map.of());
        for (int status : new int[] {401, 500}) {
            service.status = status;
            long before = counts.getFailed();
            awaitWhile(() -> take(SMALL), () -> counts.getFailed() > before);
        }
        long dropped = counts.getDropped();
        service.status = 200;
        awaitWhile(() -> take(SMALL), () -> counts.getForwarded() > 0);
        assertTrue(counts.getDropped() > dropped, "while it rests, nothing is kept");
    }

    @Test
    void aRefusedRequestDoesntHoldUpTheNext() throws Exception {
        forwarder = forwarder(Map.of());
        service.status = 400; // of what this request holds
        take(SMALL);
        await(() -> counts.getFailed() == 1);
        service.status = 200;
        take(SMALL);
        await(() -> counts.getForwarded() == 1);
        assertEquals(0, counts.getDropped());
    }

    @Test
    void whatDoesntFitIsDroppedAtOnce() throws Exception {
        forwarder = forwarder(Map.of("evenload.telemetry.queue.bytes", "65536"));
        take(Pushes.metrics(65536));
        assertEquals(1, counts.getDropped());
        take(SMALL);
        await(() -> counts.getForwarded() == 1);
    }

    @Test
    void onceClosedNothingIsLeft() throws Exception {
        forwarder = forwarder(Map.of());
        take(SMALL);
        await(() -> counts.getForwarded() == 1);
        forwarder.close();
        forwarder.close();
        await(() -> Thread.getAllStackTraces().keySet().stream()
                .noneMatch(thread -> thread.getName().equals("evenload-telemetry")));
        take(SMALL);
        assertEquals(1, counts.getDropped());
    }

    @Test
    void whateverIsWrongNothingIsThrownAtTheBroker() {
        TelemetryPlugin plugin = new TelemetryPlugin();
        assertDoesNotThrow(() -> plugin.exportMetrics(Pushes.context(), Pushes.payload(SMALL)));
        assertDoesNotThrow(() -> plugin.configure(Map.of("evenload.telemetry.url", "nonsense")));
        assertDoesNotThrow(() -> plugin.exportMetrics(Pushes.context(), Pushes.payload(SMALL)));
        plugin.configure(Map.of("evenload.telemetry.url", service.url(), "node.id", 1));
        ClientTelemetryPayload broken = Pushes.proxy(ClientTelemetryPayload.class, name -> {
            throw new IllegalStateException(name);
        });
        assertDoesNotThrow(() -> plugin.exportMetrics(Pushes.context(), broken));
        assertDoesNotThrow(() -> plugin.exportMetrics(null, Pushes.payload(SMALL)));
        plugin.close();
        plugin.close();
        assertDoesNotThrow(() -> plugin.exportMetrics(Pushes.context(), Pushes.payload(SMALL)));
        assertTrue(service.bodies.isEmpty());
    }

    @Test
    void aPushIsCopiedOutOfTheBrokersBuffer() {
        ClientTelemetryPayload payload = Pushes.payload(SMALL);
        Push push = new Push(Pushes.context(), payload, 0);
        assertEquals(SMALL.length, push.payload.length);
        assertEquals(SMALL.length, payload.data().remaining(), "others may read it, too");
        assertFalse(push.payload == payload.data().array());
    }

    private Forwarder forwarder(Map<String, Object> more) {
        Map<String, Object> settings = new HashMap<>(more);
        settings.put("evenload.telemetry.url", service.url());
        return new Forwarder(TelemetrySettings.of(settings), counts, "1");
    }

    private void take(byte[] metrics) {
        forwarder.take(Pushes.context(), Pushes.payload(metrics), 10_000);
    }

    private static void await(BooleanSupplier happened) throws InterruptedException {
        awaitWhile(() -> {}, happened);
    }

    private static void awaitWhile(Runnable act, BooleanSupplier happened) throws InterruptedException {
        while (!happened.getAsBoolean()) {
            act.run();
            Thread.sleep(5);
        }
    }
}
