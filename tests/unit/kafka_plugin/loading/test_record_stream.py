"""The records of a source are the same from any start, a bounded way ahead, and its errors come through."""

from __future__ import annotations

import threading

import numpy as np
import pyarrow as pa
import pytest

from evenload.dataset_catalog.records.encoding import (
    add_checksum,
    decode_records,
    decode_samples,
    parse_record_header,
    sample_hashes,
)
from evenload.kafka_plugin.errors import MalformedSourceError, SampleTooLargeError
from evenload.kafka_plugin.loading.record_stream import (
    RecordGroup,
    RecordLayout,
    RecordStream,
    encode_groups,
    encoded_bytes_per_sample,
)
from evenload.kafka_plugin.sources.source import Source, open_source

NUM_SAMPLES = 500


@pytest.fixture(scope="module")
def source() -> Source:
    texts = ["y" * (number % 50) for number in range(NUM_SAMPLES)]
    return open_source({"n": np.arange(NUM_SAMPLES), "text": texts})


def layout(**changes: object) -> RecordLayout:
    given = {
        "encoding": "packed",
        "value_format": "arrow",
        "samples_per_record": 7,
        "block_bytes": 1 << 20,
        "seed": 3,
        "load_id": "0123456789abcdef",
        "max_record_bytes": 1 << 20,
    }
    return RecordLayout(**{**given, **changes})


def samples_of(groups: list[RecordGroup], schema: pa.Schema, how: RecordLayout) -> list[dict[str, object]]:
    rows = []
    for group in groups:
        first = group.first_sample
        for record in group.records:
            if how.encoding == "packed":
                batch = decode_samples(record.value, schema)
            else:
                batch = decode_records([record.value], schema, how.value_format)
            header = parse_record_header(record.header)
            assert header is not None
            assert (header.load_id, header.first_sample) == (how.load_id, first)
            assert batch.num_rows == record.num_samples
            first += record.num_samples
            rows += batch.to_pylist()
        assert first == group.first_sample + group.num_samples
        assert group.num_bytes == sum(len(record.value) for record in group.records)
    return rows


@pytest.mark.parametrize(
    "how",
    [layout(), layout(encoding="record"), layout(encoding="record", value_format="json", seed=None)],
    ids=["packed", "record", "json"],
)
def test_from_any_start_the_records_hold_the_rest_of_the_samples(source: Source, how: RecordLayout) -> None:
    whole = list(encode_groups(source, how, 0))
    rows = samples_of(whole, source.schema, how)
    assert sorted(row["n"] for row in rows) == list(range(NUM_SAMPLES))
    for start in (0, 1, 6, 7, 8, 250, NUM_SAMPLES - 1, NUM_SAMPLES):
        assert samples_of(list(encode_groups(source, how, start)), source.schema, how) == rows[start:]


def test_the_checksums_add_up_to_that_of_the_source(source: Source) -> None:
    (batch,) = source.batches(samples_per_batch=NUM_SAMPLES, seed=None)
    expected = add_checksum(0, sample_hashes(batch))
    for how in (layout(), layout(encoding="record", seed=9)):
        total = sum(group.checksum for group in encode_groups(source, how, 0)) % 2**128
        assert total == expected


def test_a_record_of_samples_larger_than_most_is_split() -> None:
    source = open_source({"text": ["x" * 10] * 6 + ["x" * 3000] * 2})
    how = layout(samples_per_record=8, seed=None, max_record_bytes=5000)
    (group,) = encode_groups(source, how, 0)
    assert [record.num_samples for record in group.records] == [4, 2, 1, 1] or group.records[
        0
    ].num_samples == 4
    assert len(samples_of([group], source.schema, how)) == 8


def test_a_sample_that_fits_in_no_record_is_refused_with_its_number() -> None:
    source = open_source({"text": ["x"] * 5 + ["x" * 6000]})
    with pytest.raises(
        SampleTooLargeError, match=r"Sample 5 .* takes 6\d\d\d bytes, .* at most 4744"
    ) as caught:
        list(encode_groups(source, layout(seed=None, max_record_bytes=5000), 0))
    assert caught.value.sample == 5


def test_the_stream_gives_the_groups_in_order_and_ends(source: Source) -> None:
    stream = RecordStream(source, layout(), 70, ahead_bytes=1000)
    groups = []
    while not stream.is_done:
        group = stream.take(5)
        if group is not None:
            groups.append(group)
    stream.close()
    assert groups == list(encode_groups(source, layout(), 70))


def test_the_stream_stays_a_bounded_way_ahead(source: Source) -> None:
    stream = RecordStream(source, layout(), 0, ahead_bytes=2000)
    assert stream.take(5) is not None
    largest = max(group.num_bytes for group in encode_groups(source, layout(), 0))
    with stream._news:
        assert stream._waiting_bytes <= 2000 + largest
    stream.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "evenload-encode"]


def test_an_error_of_the_source_is_raised_after_what_came_before_it(source: Source) -> None:
    class Breaking:
        num_bytes, num_samples = source.num_bytes, source.num_samples

        def batches(self, *args: int, **kwargs: object) -> object:
            yield next(source.batches(*args, **kwargs))  # type: ignore[arg-type]
            raise MalformedSourceError("cat/1.png", "the image can't be read.")

    stream = RecordStream(Breaking(), layout(), 0, ahead_bytes=1 << 20)  # type: ignore[arg-type]
    assert stream.take(5) is not None
    with pytest.raises(MalformedSourceError, match="cat/1"):
        stream.take(5)
    assert not stream.is_done  # a load must not take a broken source for a finished one
    stream.close()


def test_the_size_of_a_sample_is_measured_by_encoding_some(source: Source) -> None:
    packed = encoded_bytes_per_sample(source, "packed", "arrow")
    single = encoded_bytes_per_sample(source, "record", "arrow")
    assert 30 < packed < 60
    assert single > packed
