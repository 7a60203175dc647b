package io.evenload.kafka.partitioner;

import io.evenload.kafka.client.UnusableException;
import java.util.List;
import java.util.Map;

/**
 * A topic's route as the service answers it; route_service/route_answer.py says what each field means. Fields that
 * aren't known are ignored, another schema version is refused.
 */
final class RouteAnswer {
    private static final long SCHEMA_VERSION = 1;
    private static final double EXPIRES_MAX_S = 300;
    private static final double POLL_MAX_S = 60;

    /** Kafka's id of the cluster that was measured. */
    final String clusterId;

    /** By partition; none: go evenly. */
    final double[] shares;

    /** So long after the measurement, in seconds, the shares end. */
    final double expiresS;

    /** The most to send to a partition before the next one's turn. */
    final long turnMaxBytes;

    /** How often to ask, in seconds, while the topic is written. */
    final double pollS;

    /** After so many bytes, the service wants to hear of them. */
    final long reportBytes;

    /** Why shares are only even, or null. */
    final String reason;

    private RouteAnswer(Fields fields) throws UnusableException {
        clusterId = fields.text("cluster_id");
        shares = fields.shares();
        expiresS = fields.number("expires_s", EXPIRES_MAX_S);
        turnMaxBytes = fields.bytes("turn_max_bytes");
        pollS = fields.number("poll_s", POLL_MAX_S);
        reportBytes = fields.bytes("report_bytes");
        reason = fields.isNull("reason") ? null : fields.text("reason");
        if (shares.length == 0 && reason == null) {
            throw new UnusableException("its route has neither shares nor a reason for having none");
        }
    }

    /**
     * What an answer about a topic says.
     *
     * @throws UnusableException it isn't one, or of another topic or schema version.
     */
    static RouteAnswer of(byte[] body, String topic) throws UnusableException {
        Object value = Json.read(body);
        if (!(value instanceof Map)) {
            throw new UnusableException("its route is no JSON object");
        }
        Fields fields = new Fields((Map<?, ?>) value);
        if (fields.integer("schema_version") != SCHEMA_VERSION) {
            throw new UnusableException("its route has schema version " + fields.integer("schema_version"));
        }
        if (!fields.text("topic").equals(topic)) {
            throw new UnusableException("it was asked about topic " + topic + ", and answered about another");
        }
        return new RouteAnswer(fields);
    }

    private static final class Fields {
        private final Map<?, ?> fields;

        Fields(Map<?, ?> fields) {
            this.fields = fields;
        }

        boolean isNull(String name) {
            return fields.get(name) == null;
        }

        String text(String name) throws UnusableException {
            Object value = fields.get(name);
            if (value instanceof String) {
                return (String) value;
            }
            throw wrong(name);
        }

        long integer(String name) throws UnusableException {
            Object value = fields.get(name);
            if (value instanceof Long) {
                return (Long) value;
            }
            throw wrong(name);
        }

        long bytes(String name) throws UnusableException {
            long bytes = integer(name);
            if (bytes < 1) {
                throw wrong(name);
            }
            return bytes;
        }

        double number(String name, double most) throws UnusableException {
            double number = finite(fields.get(name), name);
            if (!(number > 0 && number <= most)) {
                throw wrong(name);
            }
            return number;
        }

        double[] shares() throws UnusableException {
            Object value = fields.get("shares");
            if (!(value instanceof List)) {
                throw wrong("shares");
            }
            List<?> list = (List<?>) value;
            double[] shares = new double[list.size()];
            double total = 0;
            for (int partition = 0; partition < shares.length; partition++) {
                shares[partition] = finite(list.get(partition), "shares");
                if (shares[partition] < 0) {
                    throw wrong("shares");
                }
                total += shares[partition];
            }
            if (shares.length > 0 && !(total > 0 && Double.isFinite(total))) {
                throw wrong("shares");
            }
            return shares;
        }

        private static double finite(Object value, String name) throws UnusableException {
            double number = value instanceof Number ? ((Number) value).doubleValue() : Double.NaN;
            if (!Double.isFinite(number)) {
                throw wrong(name);
            }
            return number;
        }

        private static UnusableException wrong(String name) {
            return new UnusableException("its route can't be read: " + name);
        }
    }
}
