package io.evenload.kafka.partitioner;

import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;

/** What Python's tests run as well: tests/vectors. */
final class Vectors {
    private Vectors() {}

    static Object read(String name) throws Exception {
        String folder = System.getProperty("evenload.vectors", "../tests/vectors");
        Path path = Paths.get(folder, name);
        return Json.read(Files.readAllBytes(path));
    }

    static byte[] fromHex(String hex) {
        byte[] bytes = new byte[hex.length() / 2];
        for (int at = 0; at < bytes.length; at++) {
            bytes[at] = (byte) Integer.parseInt(hex.substring(2 * at, 2 * at + 2), 16);
        }
        return bytes;
    }
}
