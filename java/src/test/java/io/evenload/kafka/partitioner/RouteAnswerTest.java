package io.evenload.kafka.partitioner;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;

import io.evenload.kafka.client.UnusableException;
import java.nio.charset.StandardCharsets;
import org.junit.jupiter.api.Test;

class RouteAnswerTest {
    static final String GOOD = "{\"schema_version\":1,\"cluster_id\":\"c\",\"topic\":\"clicks\",\"version\":3,"
            + "\"shares\":[0.25,0,0.75],\"expires_s\":30.0,\"turn_max_bytes\":4096,\"poll_s\":1.0,\"report_bytes\":99,"
            + "\"reason\":null,\"notes\":[],\"new\":{\"x\":[1]}}";

    private static RouteAnswer read(String text) throws UnusableException {
        return RouteAnswer.of(text.getBytes(StandardCharsets.UTF_8), "clicks");
    }

    @Test
    void anAnswerIsReadAndUnknownFieldsAreIgnored() throws Exception {
        RouteAnswer answer = read(GOOD);
        assertArrayEquals(new double[] {0.25, 0, 0.75}, answer.shares);
        assertEquals("c", answer.clusterId);
        assertEquals(30, answer.expiresS);
        assertEquals(4096, answer.turnMaxBytes);
        assertEquals(99, answer.reportBytes);
        assertNull(answer.reason);
        assertEquals(0, read(GOOD.replace("[0.25,0,0.75]", "[]").replace(":null", ":\"no_leader\"")).shares.length);
    }

    @Test
    void nonsenseIsRefused() {
        String[][] changes = {
            {"\"schema_version\":1", "\"schema_version\":2"},
            {"\"topic\":\"clicks\"", "\"topic\":\"other\""},
            {"[0.25,0,0.75]", "[]"},
            {"[0.25,0,0.75]", "[0,0]"},
            {"[0.25,0,0.75]", "[-1,2]"},
            {"[0.25,0,0.75]", "[1e308,1e308,1e308]"},
            {"[0.25,0,0.75]", "[\"1\"]"},
            {"\"expires_s\":30.0", "\"expires_s\":0"},
            {"\"expires_s\":30.0", "\"expires_s\":301"},
            {"\"expires_s\":30.0,", ""},
            {"\"poll_s\":1.0", "\"poll_s\":61"},
            {"\"turn_max_bytes\":4096", "\"turn_max_bytes\":0"},
            {"\"turn_max_bytes\":4096", "\"turn_max_bytes\":4096.5"},
            {"\"reason\":null", "\"reason\":3"},
        };
        for (String[] change : changes) {
            assertThrows(UnusableException.class, () -> read(GOOD.replace(change[0], change[1])), change[1]);
        }
        assertThrows(UnusableException.class, () -> read("[]"));
    }
}
