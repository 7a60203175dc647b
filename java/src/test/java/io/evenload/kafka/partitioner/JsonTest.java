package io.evenload.kafka.partitioner;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import io.evenload.kafka.client.UnusableException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Random;
import org.junit.jupiter.api.Test;

class JsonTest {
    private static Object read(String text) throws UnusableException {
        return Json.read(text.getBytes(StandardCharsets.UTF_8));
    }

    @Test
    void valuesAreWhatTheyAreInJson() throws Exception {
        String text = " {\"a\": [1, -2.5e1, true, false, null, \"x\\\"\\\\\\/\\n\\u00e9\"], \"b\": {}, \"c\": []} ";
        assertEquals(
                "{a=[1, -25.0, true, false, null, x\"\\/\n\u00e9], b={}, c=[]}", read(text).toString());
        assertEquals(Double.valueOf(1e30), read("1000000000000000000000000000000"));
        assertEquals(0L, read("-0"));
    }

    @Test
    void whatIsNoJsonIsRefused() {
        String[] wrong = {
            "", " ", "{", "[1,]", "{\"a\":1,}", "{a:1}", "01", "+1", ".5", "1.", "1e", "NaN", "Infinity", "tru", "'a'",
            "\"\n\"", "\"\\x\"", "\"\\u12g4\"", "\"a", "[1 2]", "1 2", "{\"a\" 1}", "\u00a01"
        };
        for (String text : wrong) {
            assertThrows(UnusableException.class, () -> read(text), text);
        }
        assertThrows(UnusableException.class, () -> Json.read(new byte[] {'"', (byte) 0xff, '"'}));
        assertThrows(UnusableException.class, () -> read("[".repeat(100_000)));
    }

    @Test
    void anyBytesAreAValueOrRefused() {
        Random random = new Random(1);
        byte[] letters = "{}[]\",:0123456789.eE+-truefalsn\\ u".getBytes(StandardCharsets.UTF_8);
        for (int number = 0; number < 20_000; number++) {
            byte[] bytes = new byte[random.nextInt(12)];
            for (int at = 0; at < bytes.length; at++) {
                bytes[at] = number % 2 == 0 ? (byte) random.nextInt() : letters[random.nextInt(letters.length)];
            }
            try {
                Json.read(bytes);
            } catch (UnusableException refused) {
                assertEquals(false, refused.getMessage().isEmpty(), Arrays.toString(bytes));
            }
        }
    }

    @Test
    void quotedTextIsReadAsItWas() throws Exception {
        String text = "a\"b\\c\u0001\u00e9\ud83d\ude00";
        assertEquals(text, read(Json.quoted(text)));
    }
}
