"""Keyed records go where the Java client would put them; others where the router says."""

from __future__ import annotations

import pytest
from kafka.partitioner import murmur2

from kafka_plugin.partitioner import java_partition

# org.apache.kafka.common.utils.UtilsTest.testMurmur2
JAVA_MURMUR2 = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("key", "hashed"), JAVA_MURMUR2.items())
def test_murmur2_is_the_java_clients(key: bytes, hashed: int) -> None:
    assert murmur2(key) == hashed % 2**32
    assert java_partition(key, 7) == (hashed & 0x7FFFFFFF) % 7
