package io.evenload.kafka.telemetry;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Random;
import org.junit.jupiter.api.Test;

class OtlpTest {
    private static byte[] text(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static byte[] joined(byte[]... parts) {
        int size = 0;
        for (byte[] part : parts) {
            size += part.length;
        }
        byte[] joined = new byte[size];
        int at = 0;
        for (byte[] part : parts) {
            System.arraycopy(part, 0, joined, at, part.length);
            at += part.length;
        }
        return joined;
    }

    /** A field with a length below 128. */
    private static byte[] field(int number, byte[]... parts) {
        byte[] content = joined(parts);
        return joined(new byte[] {(byte) (number << 3 | 2), (byte) content.length}, content);
    }

    private static byte[] attribute(String name, String value) {
        return field(1, field(1, text(name)), field(2, field(1, text(value))));
    }

    @Test
    void aPushIsPutUnderOneResourceInWhichNobodyPosesAsUs() throws Exception {
        byte[] scope = field(2, text("scope"));
        byte[] other = field(2, text("other"));
        byte[] pushed = joined(
                field(1, field(1, attribute("evenload.broker.id", "9"), attribute("own", "9")), scope, field(3, text("s"))),
                new byte[] {0x50, 1}, // a field that isn't known, a varint
                field(1, other));
        Map<String, Object> ours = new LinkedHashMap<>();
        ours.put("evenload.broker.id", "1");
        ours.put("n", 300L);
        ours.put("t", true);
        byte[] number = field(1, field(1, text("n")), field(2, new byte[] {0x18, (byte) 0xac, 2}));
        byte[] truth = field(1, field(1, text("t")), field(2, new byte[] {0x10, 1}));
        byte[] resource = field(
                1, attribute("own", "9"), attribute("evenload.broker.id", "1"), number, truth);
        assertArrayEquals(field(1, resource, scope, other), Otlp.regrouped(pushed, ours));
    }

    @Test
    void aPushWithoutMetricsIsOneOfNobodysMetrics() throws Exception {
        assertArrayEquals(
                field(1, field(1, attribute("a", "b"))), Otlp.regrouped(new byte[0], Map.of("a", (Object) "b")));
    }

    @Test
    void whatIsCutOrNoProtobufIsRefused() {
        byte[] whole = field(1, field(1, attribute("name", "value")), field(2, text("scope")));
        for (int size = 1; size < whole.length; size++) {
            byte[] cut = Arrays.copyOf(whole, size);
            assertThrows(Unreadable.class, () -> Otlp.regrouped(cut, Map.of()), "of " + size);
        }
        byte[][] wrong = {{0x0b}, {2, 0}, {0x0a, -1, -1, -1, -1, 127}, {8, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 1}, {0x0a, 1}};
        for (byte[] bytes : wrong) {
            assertThrows(Unreadable.class, () -> Otlp.regrouped(bytes, Map.of()), Arrays.toString(bytes));
        }
    }

    @Test
    void anyBytesAreRegroupedOrRefused() {
        Random random = new Random(1);
        byte[] whole = field(1, field(1, attribute("name", "value")), field(2, text("scope")));
        for (int number = 0; number < 20_000; number++) {
            byte[] bytes = whole.clone();
            for (int change = random.nextInt(4); change >= 0; change--) {
                bytes[random.nextInt(bytes.length)] = (byte) random.nextInt();
            }
            try {
                Otlp.regrouped(bytes, Map.of("a", (Object) "b"));
            } catch (Unreadable refused) {
                continue;
            }
        }
    }
}
