package io.evenload.kafka.telemetry;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.util.zip.GZIPInputStream;

/**
 * Unpacks what a push holds. Kafka 3.7 hands over what clients compressed, without saying so; later ones have unpacked it.
 *
 * <p>What is none of protobuf, gzip and zstd is refused, and so is what would take more than {@link #MAX_BYTES}.
 */
final class Unpacking {
    // With what the broker knows of the client, it fits into one request to the collector service.
    static final int MAX_BYTES = 960 << 10;

    private static final int PROTOBUF = 0x0a; // field 1, with a length: all that a push has at its top
    private static final int GZIP = 0x1f8b;
    private static final int ZSTD = 0x28b52ffd;
    private static final int BUFFER_BYTES = 8192;

    private Unpacking() {}

    static byte[] unpacked(byte[] payload) throws Unreadable {
        if (payload.length == 0 || payload[0] == PROTOBUF) {
            return bounded(payload);
        }
        try {
            if (begins(payload, GZIP, 2)) {
                return read(new GZIPInputStream(new ByteArrayInputStream(payload)));
            }
            if (begins(payload, ZSTD, 4)) {
                return read(zstd(new ByteArrayInputStream(payload)));
            }
        } catch (IOException | ReflectiveOperationException | LinkageError error) {
            throw new Unreadable("it can't be unpacked"); // nor can anything where zstd's own library can't be loaded
        }
        throw new Unreadable("it is packed in a way that isn't known");
    }

    private static byte[] bounded(byte[] payload) throws Unreadable {
        if (payload.length > MAX_BYTES) {
            throw new Unreadable("it is larger than " + MAX_BYTES + " bytes");
        }
        return payload;
    }

    private static boolean begins(byte[] payload, int magic, int count) {
        int first = 0;
        for (int at = 0; at < count; at++) {
            first = first << 8 | (at < payload.length ? payload[at] & 0xff : 0);
        }
        return first == magic;
    }

    /** By the broker's own library: this jar has none. */
    private static InputStream zstd(InputStream packed) throws ReflectiveOperationException {
        return (InputStream) Class.forName("com.github.luben.zstd.ZstdInputStream")
                .getConstructor(InputStream.class)
                .newInstance(packed);
    }

    private static byte[] read(InputStream unpacking) throws IOException, Unreadable {
        try (InputStream stream = unpacking) {
            ByteArrayOutputStream read = new ByteArrayOutputStream();
            byte[] buffer = new byte[BUFFER_BYTES];
            for (int count = stream.read(buffer); count >= 0; count = stream.read(buffer)) {
                if (read.size() + count > MAX_BYTES) {
                    throw new Unreadable("it unpacks to more than " + MAX_BYTES + " bytes");
                }
                read.write(buffer, 0, count);
            }
            return read.toByteArray();
        }
    }
}
