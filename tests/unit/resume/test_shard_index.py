"""What a checkpoint says of its sharded tensors is believed only where it can be so."""

from __future__ import annotations

import json
from typing import Any

import pytest

from evenload.resume.shard_index import ShardIndex
from evenload.resume.storage import FileRecord

FILES = {"shards-00000.bin": FileRecord(60, "")}
PIECE = {"offsets": [0, 0], "sizes": [5, 3], "file": "shards-00000.bin", "start": 0, "checksum": ""}


def piece(begin: int, size: int) -> dict[str, Any]:
    """So many rows."""
    return PIECE | {"offsets": [begin, 0], "sizes": [size, 3]}


TENSOR = {"shape": [5, 3], "dtype": "float32", "shard_dims": [0], "pieces": [PIECE]}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"dtype": "Tensor"}, "no type of a tensor"),
        ({"dtype": "float64"}, "not within the file"),
        ({"shape": [5, 4]}, "not all of it"),
        ({"shape": [15]}, "other dimensions"),
        ({"shape": [4, 3]}, "not within it"),
        ({"pieces": []}, "not all of it"),
        ({"pieces": [PIECE, PIECE]}, "not all of it"),
        ({"pieces": [piece(0, 2), piece(0, 2), piece(4, 1)]}, "not all of it"),
        ({"pieces": [piece(0, 3), piece(2, 2)]}, "not all of it"),
        ({"shape": [1] * 17}, "at most 16"),
        ({"shape": [1 << 70, 1 << 70]}, "not all of it"),
        ({"pieces": [PIECE | {"file": "../../secret"}]}, "not within the file"),
        ({"pieces": [PIECE | {"start": 1}]}, "not within the file"),
        ({"pieces": [PIECE | {"start": -4}]}, "greater than or equal to 0"),
        ({"pieces": [PIECE | {"offsets": [0, 1]}]}, "not within it"),
        ({"pieces": [PIECE | {"sizes": [1 << 70, 1 << 70]}]}, "not within it"),
        ({"more": 1}, "not permitted"),
    ],
)
def test_an_index_that_cant_be_is_refused(changed: dict[str, Any], said: str) -> None:
    text = json.dumps({"tensors": {"model.weight": TENSOR | changed}}).encode()
    with pytest.raises(ValueError, match=said):
        ShardIndex.from_json(text, FILES)


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"pieces": [piece(0, 2), piece(2, 3)]},
        {"pieces": [piece(4, 1), piece(0, 0), piece(0, 4)]},
        {
            "pieces": [
                piece(0, 4),
                PIECE | {"offsets": [4, 0], "sizes": [1, 2]},
                PIECE | {"offsets": [4, 2], "sizes": [1, 1]},
            ]
        },
        {"shape": [0, 3], "pieces": []},
        {"shape": [], "pieces": [PIECE | {"offsets": [], "sizes": []}]},
    ],
)
def test_an_index_that_can_be_is_read(changed: dict[str, Any]) -> None:
    text = json.dumps({"tensors": {"model.weight": TENSOR | changed}}).encode()
    index = ShardIndex.from_json(text, FILES)
    assert list(index.tensors) == ["model.weight"]
