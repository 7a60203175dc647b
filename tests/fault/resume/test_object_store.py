"""A run whose folder is in an object store that stutters, refuses, and breaks off."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from evenload.resume import checkpoint_writer
from evenload.resume.checkpoint import INDEX_NAME, STATE_NAME, CheckpointStore
from evenload.resume.errors import (
    CheckpointWriteError,
    StorageUnreadableError,
    StorageUnwritableError,
)
from evenload.resume.hook import CheckpointHook
from evenload.resume.storage import RunStorage

ObjectStore = Any
SAMPLES = torch.arange(400.0)[:, None]


@pytest.fixture(params=["503", "broken off"])
def refuse(request: pytest.FixtureRequest) -> Callable[[], bool]:
    """What the server does with a request that isn't to succeed."""

    def answer() -> bool:
        if request.param == "503":
            return False
        raise ConnectionError

    return answer


def hook_in(store: ObjectStore, model: nn.Module, **options: Any) -> CheckpointHook:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    options = {"checkpoint_interval_s": 0, "run": "run", **options}
    return CheckpointHook(model=model, optimizer=optimizer, storage=f"{store.url}/runs", **options)


def newest_step(store: ObjectStore) -> int:
    found = CheckpointStore(RunStorage(f"{store.url}/runs", "run"), None).newest_valid().checkpoint
    assert found is not None
    return found.index.step


def test_a_server_that_stutters_is_asked_again(object_store: ObjectStore, refuse: Callable[[], bool]) -> None:
    storage = RunStorage(object_store.url, "run")
    refused: list[str] = []

    def allow(method: str, path: str) -> bool:
        if len(refused) == 7 or "folder" not in path:
            return True
        refused.append(method)
        return refuse()

    for act in (
        lambda: storage.write("folder/file", b"content"),
        lambda: storage.read("folder/file"),
        lambda: storage.exists("folder/file"),
        lambda: storage.read_range("folder/file", 1, 3),
    ):
        refused.clear()
        object_store.allow = allow
        act()
        assert len(refused) == 7
    assert storage.read("folder/file") == b"content"
    assert storage.read_range("folder/file", 1, 3) == b"ont"
    assert storage.list_names("folder") == ["file"]


def test_a_server_that_refuses_for_good_is_never_taken_for_absence(
    object_store: ObjectStore, refuse: Callable[[], bool]
) -> None:
    storage = RunStorage(object_store.url, "run", patience_s=0)
    storage.write("folder/file", b"content")
    object_store.allow = lambda method, path: refuse()  # noqa: ARG005
    for ask in (
        lambda: storage.exists("folder/file"),
        lambda: storage.read("folder/file"),
        lambda: storage.list_names("folder"),
        lambda: storage.checksum("folder/file"),
    ):
        with pytest.raises(StorageUnreadableError):
            ask()
    with pytest.raises(StorageUnwritableError):
        storage.write("folder/file", b"other")


def test_a_server_that_says_nothing_is_not_waited_for(
    object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evenload.resume.storage._SILENCE_S", 1.0)
    goes_on = threading.Event()

    def allow(method: str, path: str) -> bool:
        del method, path
        return goes_on.wait()

    storage = RunStorage(object_store.url, "run", patience_s=0)
    object_store.allow = allow
    with pytest.raises(StorageUnreadableError):
        storage.exists("file")
    goes_on.set()
    assert not storage.exists("file")


def test_a_bucket_that_isnt_there_is_said_before_anything_is_done(object_store: ObjectStore) -> None:
    with pytest.raises(StorageUnwritableError, match="not found"):
        CheckpointHook(model=nn.Linear(1, 1), run="run", storage=f"{object_store.url}-not/runs")


def test_secrets_in_a_url_are_shown_to_nobody(object_store: ObjectStore) -> None:
    host = object_store.endpoint.removeprefix("http://")
    bucket = object_store.url.removeprefix("s3://")
    url = f"s3://somebody:secret@{bucket}/runs?endpoint_override={host}&scheme=http"
    storage = RunStorage(url, "run")
    storage.write("file", b"content")
    assert storage.place("file") == f"s3://{bucket}/runs/run/file"
    assert RunStorage(f"s3://{bucket}/runs", "run").read("file") == b"content"


def test_an_upload_that_breaks_off_leaves_the_checkpoint_before(
    object_store: ObjectStore, refuse: Callable[[], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And so does an index that can't be written after all its parts were."""
    monkeypatch.setattr(checkpoint_writer, "FAILURES_MAX", 1)

    def train_until_it_is_refused(hook: CheckpointHook, name: str) -> None:
        def allow(method: str, path: str) -> bool:
            return refuse() if method != "GET" and path.endswith(name) else True

        begun_at = hook.step
        for _ in hook.epochs(100):
            for _ in hook.steps(hook.loader(SAMPLES, batch_size=4)):
                if hook._saved_step not in (None, begun_at):
                    object_store.allow = allow

    for name in (STATE_NAME, INDEX_NAME):
        hook = hook_in(object_store, nn.Linear(1, 1))
        hook._storage.patience_s = 0
        begun_at = hook.step
        with pytest.raises(CheckpointWriteError):
            train_until_it_is_refused(hook, name)
        hook.abandon()
        object_store.allow = lambda method, path: True  # noqa: ARG005
        assert newest_step(object_store) == hook._saved_step
        assert newest_step(object_store) > begun_at


def test_a_server_that_is_slow_keeps_no_step_waiting(object_store: ObjectStore) -> None:
    goes_on = threading.Event()
    is_asked = threading.Event()

    def allow(method: str, path: str) -> bool:
        if method == "PUT" and path.endswith(STATE_NAME):
            is_asked.set()
            goes_on.wait()
        return True

    object_store.allow = allow
    with hook_in(object_store, nn.Linear(1, 1)) as hook:
        steps_while_it_waits = 0
        for _ in hook.epochs(1):
            for _ in hook.steps(hook.loader(SAMPLES, batch_size=4)):
                if hook.step == 1:
                    is_asked.wait()
                steps_while_it_waits += is_asked.is_set() and not goes_on.is_set()
                if steps_while_it_waits == 50:
                    goes_on.set()
    assert newest_step(object_store) == 100
