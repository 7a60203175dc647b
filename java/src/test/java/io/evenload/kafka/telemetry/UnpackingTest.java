package io.evenload.kafka.telemetry;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import com.github.luben.zstd.Zstd;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.util.Arrays;
import java.util.Random;
import java.util.zip.GZIPOutputStream;
import org.junit.jupiter.api.Test;

class UnpackingTest {
    private static final byte[] PLAIN = {0x0a, 2, 1, 2};

    private static byte[] gzip(byte[] plain) throws IOException {
        ByteArrayOutputStream packed = new ByteArrayOutputStream();
        try (GZIPOutputStream packing = new GZIPOutputStream(packed)) {
            packing.write(plain);
        }
        return packed.toByteArray();
    }

    @Test
    void whatKafkaHandsOverIsUnpackedWhateverItIsPackedIn() throws Exception {
        assertArrayEquals(PLAIN, Unpacking.unpacked(PLAIN));
        assertArrayEquals(PLAIN, Unpacking.unpacked(gzip(PLAIN)));
        assertArrayEquals(PLAIN, Unpacking.unpacked(Zstd.compress(PLAIN)));
        assertArrayEquals(new byte[0], Unpacking.unpacked(new byte[0]));
    }

    @Test
    void bombsAndWhatIsNeitherAreRefused() throws Exception {
        byte[] large = new byte[Unpacking.MAX_BYTES + 1];
        large[0] = 0x0a;
        assertThrows(Unreadable.class, () -> Unpacking.unpacked(large));
        byte[] gzipped = gzip(large);
        assertThrows(Unreadable.class, () -> Unpacking.unpacked(gzipped));
        assertThrows(Unreadable.class, () -> Unpacking.unpacked(Zstd.compress(large)));
        byte[] cut = Arrays.copyOf(gzipped, gzipped.length / 2);
        assertThrows(Unreadable.class, () -> Unpacking.unpacked(cut));
        assertThrows(Unreadable.class, () -> Unpacking.unpacked(new byte[] {1, 2, 3}));
        assertThrows(Unreadable.class, () -> Unpacking.unpacked(new byte[] {0x1f}));
    }

    @Test
    void anyBytesAreUnpackedOrRefused() {
        Random random = new Random(1);
        byte[][] beginnings = {{0x1f, (byte) 0x8b, 8}, {0x28, (byte) 0xb5, 0x2f, (byte) 0xfd}, {}};
        for (int number = 0; number < 3000; number++) {
            byte[] bytes = new byte[4 + random.nextInt(60)];
            random.nextBytes(bytes);
            byte[] beginning = beginnings[number % beginnings.length];
            System.arraycopy(beginning, 0, bytes, 0, beginning.length);
            try {
                Unpacking.unpacked(bytes);
            } catch (Unreadable refused) {
                continue;
            }
        }
    }
}
