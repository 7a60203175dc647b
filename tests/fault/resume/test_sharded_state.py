"""State that is spread over ranks is kept as a whole, and loaded however it is spread by then."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from evenload.ray_trainer.training.testing import rank_processes
from evenload.resume.checkpoint import STATE_NAME, CheckpointStore
from evenload.resume.storage import RunStorage

LOOPS = Path(__file__).with_name("sharded_loops.py")

# Each goes on from what the one before has left.
CHAIN = [
    ("sharded", 2),
    ("sharded", 3),
    ("whole", 1),
    ("both", 4),
    ("tensor parallel", 2),
    ("data parallel", 2),
    ("sharded and replicated", 4),
    ("sharded", 1),
]


def run(folder: Path, function: str, world_size: int, **arguments: Any) -> None:
    options = {"folder": str(folder), **arguments}
    with rank_processes(LOOPS, function, options, world_size=world_size) as ranks:
        assert ranks.wait() == [0] * world_size


def held(folder: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = torch.load(folder / f"{name}.pt", weights_only=True)
    return found


def assert_same(ours: Any, theirs: Any, *, exact: bool = True) -> None:
    if isinstance(theirs, torch.Tensor):
        assert torch.equal(ours, theirs) if exact else torch.allclose(ours, theirs, atol=1e-6)
    elif isinstance(theirs, dict):
        assert list(ours) == list(theirs)
        for name in theirs:
            assert_same(ours[name], theirs[name], exact=exact)
    elif isinstance(theirs, list):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_same(one, other, exact=exact)
    else:
        assert ours == theirs


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chain")
    for number, (layout, world_size) in enumerate(CHAIN):
        run(folder, "go_on", world_size, layout=layout, num_steps=2, name=str(number))
    return folder


@pytest.mark.parametrize("number", range(1, len(CHAIN)), ids=lambda n: f"{CHAIN[n - 1]} to {CHAIN[n]}")
def test_what_one_layout_has_left_another_goes_on_with(chain: Path, number: int) -> None:
    assert_same(held(chain, f"{number}-before"), held(chain, f"{number - 1}-after"))


def test_all_layouts_together_train_as_one_alone(chain: Path, tmp_path: Path) -> None:
    run(tmp_path, "go_on", 1, layout="whole", num_steps=2 * len(CHAIN), name="alone")
    assert_same(held(chain, f"{len(CHAIN) - 1}-after"), held(tmp_path, "alone-after"), exact=False)


def test_an_interrupted_run_equals_an_uninterrupted_one_bit_for_bit(tmp_path: Path) -> None:
    for name, parts in (("whole", [5]), ("broken", [1, 3, 1])):
        (tmp_path / name).mkdir()
        for number, num_steps in enumerate(parts):
            run(tmp_path / name, "go_on", 2, layout="sharded", num_steps=num_steps, name=str(number))
    assert_same(held(tmp_path / "broken", "2-after"), held(tmp_path / "whole", "0-after"))


@pytest.mark.parametrize(
    ("optimizer", "layouts"),
    [
        ("rows", [("sharded", 2), ("sharded", 3), ("whole", 1), ("sharded", 2)]),
        ("pair", [("sharded", 2), ("sharded", 3), ("whole", 1)]),
    ],
)
def test_optimizers_of_another_shape_and_parts_whose_state_grows_are_kept(
    optimizer: str, layouts: list[tuple[str, int]], tmp_path: Path
) -> None:
    for number, (layout, world_size) in enumerate(layouts):
        options = {"layout": layout, "num_steps": 1, "name": str(number), "optimizer": optimizer}
        run(tmp_path, "go_on", world_size, **options)
        if number:
            assert_same(held(tmp_path, f"{number}-before"), held(tmp_path, f"{number - 1}-after"))


def test_a_process_alone_goes_on_without_a_group(tmp_path: Path) -> None:
    run(tmp_path, "go_on", 2, layout="sharded", num_steps=2, name="shared")
    go_on = runpy.run_path(str(LOOPS))["go_on"]
    go_on(folder=str(tmp_path), layout="whole", num_steps=1, name="alone")
    assert_same(held(tmp_path, "alone-before"), held(tmp_path, "shared-after"))


def test_whose_state_is_whole_never_loads_what_is_for_shards(tmp_path: Path) -> None:
    program = (
        "import sys, torch; from evenload import CheckpointHook; "
        f"hook = CheckpointHook(model=torch.nn.Linear(1, 1), run='r', storage={str(tmp_path)!r}); "
        "[None for _ in hook.epochs(1) for _ in hook.steps(hook.loader([0.0] * 4, batch_size=1))]; "
        "assert 'torch.distributed.checkpoint' not in sys.modules; "
        "assert 'torch.distributed.tensor' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_each_rank_writes_its_part_and_no_other(tmp_path: Path) -> None:
    run(tmp_path, "go_on", 2, layout="sharded", num_steps=2, name="run")
    checkpoint = CheckpointStore(RunStorage(tmp_path, "run"), None).newest_valid().checkpoint
    assert checkpoint is not None
    sizes = {name: record.size_bytes for name, record in checkpoint.index.files.items()}
    assert sorted(sizes) == ["shards-00000.bin", "shards-00001.bin", "shards.json", STATE_NAME]
    state = torch.load(tmp_path / "run" / checkpoint.folder / STATE_NAME, weights_only=True)
    kept = held(tmp_path, "run-after")
    # The model, its average, and two numbers by parameter of the optimizer; a buffer is whole.
    num_floats = 4 * sum(each.numel() for each in kept["model"].values() if each.is_floating_point())
    assert sizes["shards-00000.bin"] + sizes["shards-00001.bin"] == 4 * num_floats
    assert all(each is None for name, each in state["model"].items() if name != "seen")
    assert state["model"]["seen"] == 2


def test_a_damaged_part_makes_the_checkpoint_one_that_doesnt_count(tmp_path: Path) -> None:
    for name in ("first", "second"):
        run(tmp_path, "go_on", 2, layout="sharded", num_steps=2, name=name)
    newest = CheckpointStore(RunStorage(tmp_path, "run"), None).newest_valid().checkpoint
    assert newest is not None
    path = tmp_path / "run" / newest.folder / "shards-00001.bin"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    run(tmp_path, "go_on", 3, layout="sharded", num_steps=1, name="third")
    assert held(tmp_path, "third-before")["model"]["seen"] < 4


FAILURES = {
    "dies": "",
    "can't write": "CheckpointWriteError: checkpoint {}: rank 1: no space left",
    "can't copy": "StateUnavailableError: the state of averaged can't be had on rank 1: KeyError: 'step'",
    "keeps its own": "CheckpointWriteError: checkpoint {}.own isn't the same on every rank",
    "has another disk": "CheckpointWriteError: checkpoint {}: rank 0: rank 0 doesn't find shards-00001.bin",
}


@pytest.mark.parametrize("how", FAILURES)
def test_a_rank_whose_part_is_missing_leaves_no_checkpoint_that_counts(tmp_path: Path, how: str) -> None:
    run(tmp_path, "fail", 2, how=how)
    for rank in range(2):
        if how == "dies":
            break  # the other one has gloo's error
        error = json.loads((tmp_path / f"error-{rank}.json").read_text())
        kind, _, text = FAILURES[how].partition("{}")
        assert error.startswith(kind)
        assert text.removeprefix(": ") in error
    found = CheckpointStore(RunStorage(tmp_path, "run"), None).newest_valid().checkpoint
    step = 0 if found is None else found.index.step
    assert (step > 0) == (how != "has another disk")
    run(tmp_path, "go_on", 2, layout="sharded", num_steps=1, name="later")
    assert held(tmp_path, "later-before")["model"]["seen"] == step
