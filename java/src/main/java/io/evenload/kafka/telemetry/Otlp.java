package io.evenload.kafka.telemetry;

import java.io.ByteArrayOutputStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/**
 * Puts what a client pushed under one resource, with what the broker knows of the client beside what it says itself.
 *
 * <p>A push is OTLP's MetricsData, which is an ExportMetricsServiceRequest on the wire, and messages that follow each
 * other merge: so it takes no protobuf library, only the lengths of fields. Metrics themselves aren't looked at. A
 * client's own attributes that are called as ours are left out: nobody poses as another.
 *
 * <p>Field numbers: opentelemetry/proto/metrics/v1/metrics.proto, resource.proto, common.proto.
 */
final class Otlp {
    private static final int RESOURCE_METRICS = 1; // of MetricsData
    private static final int RESOURCE = 1; // of ResourceMetrics
    private static final int SCOPE_METRICS = 2;
    private static final int ATTRIBUTES = 1; // of Resource
    private static final int KEY = 1; // of KeyValue
    private static final int VALUE = 2;
    private static final int STRING_VALUE = 1; // of AnyValue
    private static final int BOOL_VALUE = 2;
    private static final int INT_VALUE = 3;

    private static final int VARINT = 0;
    private static final int FIXED64 = 1;
    private static final int LENGTH = 2;
    private static final int FIXED32 = 5;
    private static final int VARINT_MAX_BYTES = 10;
    private static final int FIELDS_MAX = 10_000; // of a message; a client has one for each resource or scope
    private static final String OURS = "evenload.";

    private Otlp() {}

    /** What the broker knows of a push, as attributes. */
    static Map<String, Object> attributes(Push push, String brokerId, String clusterId) {
        Map<String, Object> attributes = new LinkedHashMap<>();
        attributes.put("evenload.client.instance.id", push.clientInstanceId());
        attributes.put("evenload.client.id", push.clientId());
        attributes.put("evenload.principal", push.principal());
        attributes.put("evenload.client.address", push.address());
        attributes.put("evenload.broker.id", brokerId);
        attributes.put("evenload.cluster.id", clusterId);
        attributes.put("evenload.push.interval.ms", (long) push.intervalMs);
        attributes.put("evenload.terminating", push.isTerminating);
        return attributes;
    }

    /**
     * One ResourceMetrics as a field of a request, with all ScopeMetrics of a push.
     *
     * @param metrics MetricsData.
     * @param ours attributes that come after the client's own: texts, whole numbers, truth values.
     * @throws Unreadable it is no MetricsData.
     */
    static byte[] regrouped(byte[] metrics, Map<String, Object> ours) throws Unreadable {
        ByteArrayOutputStream resource = new ByteArrayOutputStream();
        ByteArrayOutputStream scopes = new ByteArrayOutputStream();
        for (Field top : fields(metrics, 0, metrics.length)) {
            if (!top.is(RESOURCE_METRICS)) {
                continue;
            }
            for (Field field : fields(metrics, top.begin, top.end)) {
                if (field.is(SCOPE_METRICS)) {
                    writeField(scopes, SCOPE_METRICS, metrics, field);
                } else if (field.is(RESOURCE)) {
                    for (Field attribute : fields(metrics, field.begin, field.end)) {
                        if (attribute.is(ATTRIBUTES) && !isOurs(metrics, attribute)) {
                            writeField(resource, ATTRIBUTES, metrics, attribute);
                        }
                    }
                }
            }
        }
        ours.forEach((name, value) -> writeMessage(resource, ATTRIBUTES, keyValue(name, value)));
        ByteArrayOutputStream grouped = new ByteArrayOutputStream(resource.size() + scopes.size() + 2 * VARINT_MAX_BYTES);
        writeMessage(grouped, RESOURCE, resource.toByteArray());
        byte[] scopeBytes = scopes.toByteArray();
        grouped.write(scopeBytes, 0, scopeBytes.length);
        ByteArrayOutputStream request = new ByteArrayOutputStream(grouped.size() + 2 * VARINT_MAX_BYTES);
        writeMessage(request, RESOURCE_METRICS, grouped.toByteArray());
        return request.toByteArray();
    }

    private static boolean isOurs(byte[] metrics, Field attribute) throws Unreadable {
        for (Field field : fields(metrics, attribute.begin, attribute.end)) {
            String key = new String(metrics, field.begin, field.end - field.begin, StandardCharsets.UTF_8);
            if (field.is(KEY) && key.startsWith(OURS)) {
                return true;
            }
        }
        return false;
    }

    private static byte[] keyValue(String name, Object value) {
        ByteArrayOutputStream any = new ByteArrayOutputStream();
        if (value instanceof Boolean) {
            writeVarint(any, BOOL_VALUE << 3 | VARINT);
            writeVarint(any, (Boolean) value ? 1 : 0);
        } else if (value instanceof Long) {
            writeVarint(any, INT_VALUE << 3 | VARINT);
            writeVarint(any, (Long) value);
        } else {
            writeMessage(any, STRING_VALUE, value.toString().getBytes(StandardCharsets.UTF_8));
        }
        ByteArrayOutputStream pair = new ByteArrayOutputStream();
        writeMessage(pair, KEY, name.getBytes(StandardCharsets.UTF_8));
        writeMessage(pair, VALUE, any.toByteArray());
        return pair.toByteArray();
    }

    private static void writeField(ByteArrayOutputStream out, int number, byte[] from, Field field) {
        writeVarint(out, number << 3 | LENGTH);
        writeVarint(out, field.end - field.begin);
        out.write(from, field.begin, field.end - field.begin);
    }

    private static void writeMessage(ByteArrayOutputStream out, int number, byte[] message) {
        writeVarint(out, number << 3 | LENGTH);
        writeVarint(out, message.length);
        out.write(message, 0, message.length);
    }

    private static void writeVarint(ByteArrayOutputStream out, long value) {
        long left = value;
        while ((left & ~0x7fL) != 0) {
            out.write((int) (left & 0x7f | 0x80));
            left >>>= 7;
        }
        out.write((int) left);
    }

    /** The fields of a message, of which those with a length say where they are. */
    private static List<Field> fields(byte[] bytes, int begin, int end) throws Unreadable {
        List<Field> fields = new ArrayList<>();
        Reader reader = new Reader(bytes, begin, end);
        while (reader.at < end) {
            long tag = reader.varint();
            int type = (int) (tag & 7);
            long number = tag >>> 3;
            if (number == 0 || number > Integer.MAX_VALUE >> 2) {
                throw new Unreadable("it has a field of number " + number);
            }
            if (type == VARINT) {
                reader.varint();
            } else if (type == FIXED64) {
                reader.skip(8);
            } else if (type == FIXED32) {
                reader.skip(4);
            } else if (type == LENGTH) {
                long length = reader.varint();
                int from = reader.at;
                reader.skip(length);
                if (fields.size() == FIELDS_MAX) {
                    throw new Unreadable("a message of it has more than " + FIELDS_MAX + " fields");
                }
                fields.add(new Field((int) number, from, reader.at));
            } else {
                throw new Unreadable("it has a field of type " + type);
            }
        }
        return fields;
    }

    private static final class Field {
        final int number;
        final int begin;
        final int end;

        Field(int number, int begin, int end) {
            this.number = number;
            this.begin = begin;
            this.end = end;
        }

        boolean is(int wanted) {
            return number == wanted;
        }
    }

    private static final class Reader {
        private final byte[] bytes;
        private final int end;
        int at;

        Reader(byte[] bytes, int begin, int end) {
            this.bytes = bytes;
            this.end = end;
            at = begin;
        }

        long varint() throws Unreadable {
            long value = 0;
            for (int count = 0; count < VARINT_MAX_BYTES; count++) {
                if (at >= end) {
                    throw new Unreadable("it ends too soon");
                }
                byte next = bytes[at++];
                value |= (long) (next & 0x7f) << 7 * count;
                if (next >= 0) {
                    return value;
                }
            }
            throw new Unreadable("it has a number without an end");
        }

        void skip(long count) throws Unreadable {
            if (count < 0 || count > end - at) {
                throw new Unreadable("it ends too soon");
            }
            at += (int) count;
        }
    }
}
