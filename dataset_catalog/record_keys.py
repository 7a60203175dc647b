"""Names and keys in the catalog's records. A key is `NAME@VERSION/NUMBER`, of a part or a load's progress."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated, NamedTuple

from pydantic import AfterValidator, Field

VERSION_MAX = 10**18 - 1  # what a key can hold
# All that a topic may be called, but for evenload's own and Kafka's: `drop` deletes the topic that a record
# names, and whoever writes such a record needn't be allowed to delete it himself.
_TOPIC = re.compile(r"(?!evenload(-governor|-service)?\.|__)[A-Za-z0-9._-]{1,249}")
# One way to write each key: were `x@01/0` another spelling of `x@1/0`, a record could hide behind it. At most
# 18 digits: so many always fit into 64 bits, and int() of thousands raises ValueError.
_KEY = re.compile(rb"([A-Za-z0-9][A-Za-z0-9._-]{0,199})@([1-9][0-9]{0,17})/(0|[1-9][0-9]{0,17})")


class RecordKey(NamedTuple):
    """Whose record it is, and which of its records."""

    name: str
    version: int
    number: int


def parse_key(key: bytes) -> RecordKey | None:
    """Reads a key; None when it is not one of ours."""
    found = _KEY.fullmatch(key)
    return RecordKey(found[1].decode("ascii"), int(found[2]), int(found[3])) if found else None


def keys_by_version(keys: Iterable[bytes]) -> tuple[dict[tuple[str, int], list[bytes]], list[bytes]]:
    """Keys by name and version, each in the order given; and those that are not one of ours."""
    by_version: dict[tuple[str, int], list[bytes]] = {}
    strays: list[bytes] = []
    for key in keys:
        parsed = parse_key(key)
        if parsed is None:
            strays.append(key)
        else:
            by_version.setdefault((parsed.name, parsed.version), []).append(key)
    return by_version, strays


def _check_topic(topic: str) -> str:
    if not _TOPIC.fullmatch(topic):
        raise ValueError("it can't be the topic of a dataset")
    return topic


TopicId = Annotated[str, Field(pattern=r"\A[A-Za-z0-9_-]{1,64}\z")]
DatasetTopic = Annotated[str, AfterValidator(_check_topic)]
