package io.evenload.kafka.telemetry;

import io.evenload.kafka.client.ServiceClient;
import java.net.URI;
import java.util.Map;

/** What a broker's configuration says to the plugin. */
final class TelemetrySettings {
    static final String URL = "evenload.telemetry.url";
    static final String TOKEN_FILE = "evenload.telemetry.token.file";
    static final String CA_FILE = "evenload.telemetry.ca.file";
    static final String QUEUE_BYTES = "evenload.telemetry.queue.bytes";

    private static final long QUEUE_DEFAULT_BYTES = 8 << 20;
    private static final long QUEUE_MIN_BYTES = 64 << 10;

    final URI url;
    final String tokenFile;
    final String caFile;
    final long queueBytes;

    private TelemetrySettings(Map<String, ?> configs) {
        String text = text(configs, URL);
        if (text == null) {
            throw new IllegalArgumentException(URL + " isn't set: it names the collector service");
        }
        try {
            url = ServiceClient.url(text);
        } catch (IllegalArgumentException error) {
            throw new IllegalArgumentException(URL + " has to be like https://collector:9405");
        }
        tokenFile = text(configs, TOKEN_FILE);
        caFile = text(configs, CA_FILE);
        String bytes = text(configs, QUEUE_BYTES);
        if (bytes != null && !bytes.matches("\\d{1,18}") || bytes != null && Long.parseLong(bytes) < QUEUE_MIN_BYTES) {
            throw new IllegalArgumentException(QUEUE_BYTES + " has to be a number from " + QUEUE_MIN_BYTES + " on");
        }
        queueBytes = bytes == null ? QUEUE_DEFAULT_BYTES : Long.parseLong(bytes);
    }

    /**
     * Of a broker's configuration.
     *
     * @throws IllegalArgumentException one can't be used, with which and why.
     */
    static TelemetrySettings of(Map<String, ?> configs) {
        return new TelemetrySettings(configs);
    }

    private static String text(Map<String, ?> configs, String name) {
        Object value = configs.get(name);
        String text = value == null ? "" : value.toString().trim();
        return text.isEmpty() ? null : text;
    }
}
