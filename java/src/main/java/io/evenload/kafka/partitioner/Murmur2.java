package io.evenload.kafka.partitioner;

/** Which partition a record with a key belongs to, as Kafka's own clients choose it: by Austin Appleby's MurmurHash2. */
final class Murmur2 {
    private static final int SEED = 0x9747b28c;
    private static final int FACTOR = 0x5bd1e995;
    private static final int SHIFT = 24;

    private Murmur2() {}

    /** From 0 to below {@code numPartitions}, which is at least 1. */
    static int partition(byte[] key, int numPartitions) {
        return (hash(key) & 0x7fffffff) % numPartitions;
    }

    static int hash(byte[] key) {
        int hash = SEED ^ key.length;
        int whole = key.length & ~3;
        for (int at = 0; at < whole; at += 4) {
            int word = (key[at] & 0xff)
                    | (key[at + 1] & 0xff) << 8
                    | (key[at + 2] & 0xff) << 16
                    | (key[at + 3] & 0xff) << 24;
            word *= FACTOR;
            word ^= word >>> SHIFT;
            hash = hash * FACTOR ^ word * FACTOR;
        }
        if (whole < key.length) {
            for (int at = key.length - 1; at >= whole; at--) {
                hash ^= (key[at] & 0xff) << 8 * (at - whole);
            }
            hash *= FACTOR;
        }
        hash ^= hash >>> 13;
        hash *= FACTOR;
        return hash ^ hash >>> 15;
    }
}
