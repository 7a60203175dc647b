"""A Fetch request for one range, and its answer: the two messages by which all records are read.

kafka-python's generated classes describe the same messages, and every other message goes through them; but
its answer is copied before it is parsed (half of the time per block), and a request takes as long to build
as a block takes to verify. So these two are written and read here, in version 13 (Kafka 3.1 and later),
which names the topic by its id: a topic that was deleted and made again is another topic, and says so.

A request holds one partition, because a broker then sends at least one whole record batch however small
`max_bytes` is (KIP-74): with max_bytes = 1, exactly the batch that holds the offset, and nothing twice.

Invariants, checked in tests/unit/kafka_connection/test_fetch_messages.py:
1. Requests are byte for byte what kafka-python's FetchRequest encodes.
2. Answers that kafka-python's FetchResponse encodes are read back, whatever tagged fields they hold.
3. Any other bytes are a ValueError, in time and memory that their length bounds
   (tests/property/kafka_connection/test_hostile_batches.py).
"""

from __future__ import annotations

import struct
import uuid
from typing import Final, NamedTuple

FETCH_API_KEY: Final = 1
FETCH_VERSION: Final = 13

# No code of Kafka's: who is throttled is answered without a word about the partition, and may ask again.
NOT_ANSWERED: Final = -2

# Errors that pass: leaders move, brokers start, a follower has not caught up, a disk is replaced. The names
# are in Kafka's protocol guide, https://kafka.apache.org/protocol#protocol_error_codes
PASSING_ERRORS: Final = frozenset(
    {NOT_ANSWERED, -1, 2, 3, 5, 6, 7, 8, 9, 13, 14, 15, 16, 56, 70, 71, 72, 74, 75, 76, 78, 100, 103, 106}
)

_HEADER: Final = struct.Struct(">hhi")
_BEFORE_TOPIC: Final = struct.Struct(">iiiibii")
_PARTITION: Final = struct.Struct(">iiqiqi")
_ANSWER: Final = struct.Struct(">ihi")
_PARTITION_ANSWER: Final = struct.Struct(">ihqqq")
_ABORTED: Final = struct.Struct(">qq")
_BROKER_ID: Final = struct.Struct(">i")

_CONSUMER: Final = -1
_NO_SESSION: Final = (0, -1)
_VARINT_SHIFT_MAX: Final = 28
_RESPONSE_BYTES_MAX: Final = 0x7FFFFFFF


class FetchAnswer(NamedTuple):
    """What a broker says about one partition.

    Attributes:
        error_code: 0, or one of Kafka's.
        high_watermark: one past the last offset that consumers may read; -1 where unknown.
        last_stable_offset: the same of those who read only what is committed.
        records: record batches, a view into the received bytes.
        aborted: of aborted transactions that have records among these, first offset and producer id, by first
            offset. Brokers tell only those who ask for committed records.
        preferred_replica: the broker that the leader would rather have asked, as it is in the asker's rack
            (KIP-392), without records then; -1: none.
    """

    error_code: int
    high_watermark: int
    last_stable_offset: int
    records: memoryview
    aborted: tuple[tuple[int, int], ...] = ()
    preferred_replica: int = -1


class FetchRequestWriter:
    """Writes requests for one topic; only four numbers differ between them.

    Args:
        committed_only: read up to the last stable offset, which anybody's open transaction holds back, and be
            told which transactions were aborted; their records come all the same.
        rack: where the asker is. A leader may then name a replica there instead of sending records; empty:
            it doesn't.
    """

    def __init__(
        self,
        *,
        topic_id: uuid.UUID,
        client_id: str,
        max_wait_ms: int,
        committed_only: bool = False,
        rack: str = "",
    ) -> None:
        name = client_id.encode()
        self._client = struct.pack(">h", len(name)) + name + b"\x00"
        self._before = (
            _BEFORE_TOPIC.pack(
                _CONSUMER, max_wait_ms, 1, _RESPONSE_BYTES_MAX, int(committed_only), *_NO_SESSION
            )
            + b"\x02"  # one topic (lengths are one more than what they count)
            + topic_id.bytes
            + b"\x02"  # one partition
        )
        # tagged fields of partition and topic, no forgotten topics, the rack, tagged fields
        self._after = b"\x00\x00\x01" + _compact_string(rack) + b"\x00"

    def write(
        self, correlation_id: int, *, partition: int, offset: int, max_bytes: int, leader_epoch: int = -1
    ) -> bytes:
        """The request as it goes over the wire, with its length before it.

        Args:
            leader_epoch: of the leader that is asked: a broker that has led since or before refuses then, and
                doesn't answer as a follower; -1: whoever has the partition may answer.
        """
        message = b"".join(
            (
                _HEADER.pack(FETCH_API_KEY, FETCH_VERSION, correlation_id),
                self._client,
                self._before,
                _PARTITION.pack(partition, leader_epoch, offset, -1, -1, max_bytes),
                self._after,
            )
        )
        return struct.pack(">i", len(message)) + message


def correlation_id_of(frame: memoryview) -> int:
    """Which request a frame (without its length) answers."""
    (correlation_id,) = struct.unpack_from(">i", frame)
    return int(correlation_id)


def read_fetch_answer(frame: memoryview) -> FetchAnswer:
    """Read the answer to a request for one partition.

    Raises:
        ValueError: the frame is something else.
    """
    try:
        position = _skip_tagged_fields(frame, 4)
        _, error_code, _ = _ANSWER.unpack_from(frame, position)
        num_topics, position = _count(frame, position + _ANSWER.size)
        if error_code or num_topics != 1:
            return FetchAnswer(error_code or NOT_ANSWERED, -1, -1, frame[:0])
        num_partitions, position = _count(frame, position + 16)
        if num_partitions != 1:
            raise ValueError(f"an answer for one partition tells about {num_partitions}")
        _, error_code, high_watermark, last_stable, _ = _PARTITION_ANSWER.unpack_from(frame, position)
        num_aborted, position = _count(frame, position + _PARTITION_ANSWER.size)
        aborted = []
        for _ in range(num_aborted):
            producer_id, first_offset = _ABORTED.unpack_from(frame, position)
            aborted.append((first_offset, producer_id))
            position = _skip_tagged_fields(frame, position + _ABORTED.size)
        (preferred_replica,) = _BROKER_ID.unpack_from(frame, position)
        size, position = _count(frame, position + _BROKER_ID.size)
        records = frame[position : position + max(size, 0)]
        if len(records) < size:
            raise ValueError("a fetch answer is cut off")
        return FetchAnswer(
            error_code, high_watermark, last_stable, records, tuple(sorted(aborted)), preferred_replica
        )
    except (struct.error, IndexError, OverflowError) as error:
        raise ValueError("a fetch answer can't be read") from error


def _compact_string(text: str) -> bytes:
    encoded = text.encode()
    rest, length = len(encoded) + 1, bytearray()
    while rest >= 0x80:
        length.append(rest & 0x7F | 0x80)
        rest >>= 7
    length.append(rest)
    return bytes(length) + encoded


def _count(frame: memoryview, position: int) -> tuple[int, int]:
    """A compact length, which is stored plus one (so that -1 stands for null), and where it ends."""
    value, position = _unsigned(frame, position)
    return value - 1, position


def _unsigned(frame: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = frame[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > _VARINT_SHIFT_MAX:  # else a megabyte of them makes a number that takes minutes to build
            raise ValueError("a fetch answer holds a number of more than 32 bits")


def _skip_tagged_fields(frame: memoryview, position: int) -> int:
    count, position = _unsigned(frame, position)
    for _ in range(count):
        _, position = _unsigned(frame, position)
        size, position = _unsigned(frame, position)
        position += size
    return position
