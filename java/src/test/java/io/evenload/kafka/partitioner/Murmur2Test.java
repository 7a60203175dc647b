package io.evenload.kafka.partitioner;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;

class Murmur2Test {
    @Test
    void keysGoWhereKafkasOwnPartitionerPutsThem() throws Exception {
        for (Object each : (List<?>) Vectors.read("key_partitions.json")) {
            Map<?, ?> key = (Map<?, ?>) each;
            byte[] bytes = Vectors.fromHex((String) key.get("key"));
            assertEquals(
                    ((Long) key.get("partition")).intValue(),
                    Murmur2.partition(bytes, ((Long) key.get("num_partitions")).intValue()));
        }
    }
}
