"""What benchmarks write: random bytes of one size, or rows of real data as applications send them.

Values come without end, the same each time. The Java client's tool makes its own random bytes of a size, or
draws from the lines of a file, so rows are text without line ends (images in base64).
"""

from __future__ import annotations

import base64
import json
import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Protocol

__all__ = ["RandomRecords", "Records", "Rows", "cifar10", "cola", "data_folder", "texts_and_images"]

_TEXTS_PER_IMAGE = 4
_DEFAULT_DATA = Path(__file__).parents[2] / "shared" / "data"


def data_folder() -> Path:
    """Where real data is: `EVENLOAD_TEST_DATA`, or shared/data beside the checkout. It may not be there."""
    return Path(os.environ.get("EVENLOAD_TEST_DATA") or _DEFAULT_DATA)


class Records(Protocol):
    """A source of values."""

    def values(self) -> Iterator[bytes]:
        """Without end, the same for each call."""

    def num_bytes(self, num_records: int) -> int:
        """What the first so many values have together."""

    def java_arguments(self, folder: Path) -> list[str]:
        """How Kafka's ProducerPerformance is told to send such values; it may use a folder for files."""


@dataclass(frozen=True, slots=True)
class RandomRecords:
    """Random values of one size (a few in turn; no codec could shrink one).

    Attributes:
        record_bytes: Of each.
        seed: Draws them.
    """

    record_bytes: int
    seed: int

    def values(self) -> Iterator[bytes]:
        """As Records.values."""
        draw = random.Random(self.seed)
        return cycle([draw.randbytes(self.record_bytes) for _ in range(8)])

    def num_bytes(self, num_records: int) -> int:
        """As Records.num_bytes."""
        return num_records * self.record_bytes

    def java_arguments(self, folder: Path) -> list[str]:  # noqa: ARG002
        """As Records.java_arguments."""
        return ["--record-size", str(self.record_bytes)]


@dataclass(frozen=True, slots=True)
class Rows:
    """Given values, in turn.

    Attributes:
        name: Of the data.
        rows: Text without line ends.
    """

    name: str
    rows: Sequence[bytes]

    def values(self) -> Iterator[bytes]:
        """As Records.values."""
        return cycle(self.rows)

    def num_bytes(self, num_records: int) -> int:
        """As Records.num_bytes."""
        rounds, rest = divmod(num_records, len(self.rows))
        return rounds * sum(map(len, self.rows)) + sum(map(len, self.rows[:rest]))

    def java_arguments(self, folder: Path) -> list[str]:
        """As Records.java_arguments."""
        path = folder / "rows"
        path.write_bytes(b"\n".join(self.rows))
        return ["--payload-file", str(path), "--payload-delimiter", "\\n"]


def cola(data: Path) -> Rows:
    """The sentences of CoLA's train.tsv, each a JSON object, as an application would send it."""
    lines = (data / "cola" / "train.tsv").read_text(encoding="utf-8").splitlines()
    names = ("source", "label", "mark", "sentence")
    return Rows(
        "CoLA",
        [json.dumps(dict(zip(names, line.split("\t"), strict=True))).encode() for line in lines],
    )


def cifar10(data: Path) -> Rows:
    """The first 4,000 images of CIFAR-10's train.parquet, in base64."""
    from pyarrow import parquet

    table = parquet.read_table(data / "cifar10" / "train.parquet", columns=["image"])
    images = islice(table.column("image").to_pylist(), 4000)
    return Rows("CIFAR-10", [base64.b64encode(image["bytes"]) for image in images])


def texts_and_images(texts: Rows, images: Rows) -> Rows:
    """Four texts, then an image, and so on: sizes in a fixed rhythm, as joined sources have them."""
    text = texts.values()
    rows: list[bytes] = []
    for image in images.rows:
        rows += [*islice(text, _TEXTS_PER_IMAGE), image]
    return Rows(f"{_TEXTS_PER_IMAGE} {texts.name}, 1 {images.name}", rows)
