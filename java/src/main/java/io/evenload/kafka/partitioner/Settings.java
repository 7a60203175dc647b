package io.evenload.kafka.partitioner;

import io.evenload.kafka.client.ServiceClient;
import java.net.URI;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import org.apache.kafka.common.config.ConfigException;

/** What a producer's configuration says to the partitioner. */
final class Settings {
    static final String URL = "evenload.url";
    static final String TOKEN_FILE = "evenload.token.file";
    static final String CA_FILE = "evenload.ca.file";
    static final String EXPECT_BYTES = "evenload.expect.bytes";
    static final String SPREAD_KEYS = "evenload.spread.keys";
    static final String FIRST_ROUTE_TIMEOUT_MS = "evenload.first.route.timeout.ms";

    private static final long FIRST_ROUTE_TIMEOUT_DEFAULT_MS = 1000;
    private static final long FIRST_ROUTE_TIMEOUT_MAX_MS = 60_000;
    private static final long BATCH_DEFAULT_BYTES = 16_384; // Kafka's

    /** Who decides routes; which of them is asked is found out. */
    final List<URI> urls;

    /** Read anew for each request, as it is replaced while producers run; null: no token is shown. */
    final String tokenFile;

    /** PEM; null: the authorities that Java trusts. */
    final String caFile;

    /** Payload that each topic will get from this producer; null: nobody knows. */
    final Long expectBytes;

    /** Whether records with a key go where shares say, too. */
    final boolean spreadsKeys;

    /** How long a topic's first record waits for its route, in ms. */
    final long firstRouteTimeoutMs;

    /** The producer's own batch, which is a turn's length. */
    final long batchBytes;

    final String clientId;

    private Settings(Map<String, ?> configs) {
        urls = urls(configs.get(URL));
        tokenFile = text(configs.get(TOKEN_FILE));
        caFile = text(configs.get(CA_FILE));
        boolean isExpecting = text(configs.get(EXPECT_BYTES)) != null;
        expectBytes = isExpecting ? number(configs, EXPECT_BYTES, 0, 0, Long.MAX_VALUE) : null;
        spreadsKeys = truth(configs);
        firstRouteTimeoutMs =
                number(configs, FIRST_ROUTE_TIMEOUT_MS, FIRST_ROUTE_TIMEOUT_DEFAULT_MS, 0, FIRST_ROUTE_TIMEOUT_MAX_MS);
        // 0 turns batching off: then a turn is a record.
        batchBytes = Math.max(1, number(configs, "batch.size", BATCH_DEFAULT_BYTES, 0, Integer.MAX_VALUE));
        clientId = Objects.toString(configs.get("client.id"), "");
    }

    /**
     * Of a producer's configuration, in which values are texts or what they stand for.
     *
     * @throws ConfigException one can't be used; says which, and what it should be.
     */
    static Settings of(Map<String, ?> configs) {
        return new Settings(configs);
    }

    /** What producers have to have in common to share a reader. */
    List<Object> readerKey() {
        List<Object> key = new ArrayList<>(urls);
        key.add(tokenFile);
        key.add(caFile);
        return key;
    }

    private static List<URI> urls(Object value) {
        List<URI> urls = new ArrayList<>();
        String text = text(value);
        for (String each : text == null ? new String[0] : text.split(",")) {
            try {
                urls.add(ServiceClient.url(each));
            } catch (IllegalArgumentException error) {
                throw new ConfigException(URL + " has to be like https://collector:9405, or several with commas");
            }
        }
        if (urls.isEmpty()) {
            throw new ConfigException(URL + " isn't set: the partitioner needs a collector service");
        }
        return Collections.unmodifiableList(urls);
    }

    private static String text(Object value) {
        String text = value == null ? "" : value.toString().trim();
        return text.isEmpty() ? null : text;
    }

    private static boolean truth(Map<String, ?> configs) {
        String text = text(configs.get(SPREAD_KEYS));
        if (text == null || text.equalsIgnoreCase("false")) {
            return false;
        }
        if (text.equalsIgnoreCase("true")) {
            return true;
        }
        throw new ConfigException(SPREAD_KEYS, text, "has to be true or false");
    }

    private static long number(Map<String, ?> configs, String name, long usual, long least, long most) {
        String text = text(configs.get(name));
        if (text == null) {
            return usual;
        }
        try {
            long number = Long.parseLong(text);
            if (number >= least && number <= most) {
                return number;
            }
        } catch (NumberFormatException error) {
            throw new ConfigException(name, text, "has to be a whole number");
        }
        throw new ConfigException(name, text, "has to be from " + least + " to " + most);
    }
}
