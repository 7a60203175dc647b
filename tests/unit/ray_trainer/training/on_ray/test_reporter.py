"""What a driver says to whoever queued its run."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from evenload.ray_trainer.training.events import AttemptStarted, Note, StepDone, WorkerIdentity
from evenload.ray_trainer.training.on_ray.reporter import reporter_of

STEP = StepDone(
    attempt=1, step=7, epoch=1, loss=None, samples_consumed=70, num_samples=500, samples_per_s=10.0
)
WORKERS = (
    WorkerIdentity(0, 1, "node-a", "10.0.0.1", ("0", "1")),
    WorkerIdentity(1, 2, "node-a", "10.0.0.1", ("1", "2")),
    WorkerIdentity(2, 3, "node-b", "10.0.0.2"),
)


@pytest.fixture
def heard() -> Iterator[tuple[str, queue.Queue[tuple[str | None, dict[str, Any]]]]]:
    said: queue.Queue[tuple[str | None, dict[str, Any]]] = queue.Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            said.put((self.headers.get("Authorization"), body))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/", said
        server.shutdown()
        thread.join()


def test_how_far_it_is_and_which_gpus_it_has_is_told(
    heard: tuple[str, queue.Queue[tuple[str | None, dict[str, Any]]]],
) -> None:
    url, said = heard
    reporter = reporter_of(json.dumps({"url": url, "token": "t", "job": "a", "stint": 3}))
    assert reporter is not None
    reporter.tell(Note("something else"))
    reporter.tell(AttemptStarted(1, WORKERS, step=0, epoch=0, samples_consumed=0))
    reporter.tell(STEP)
    authorization, body = said.get(timeout=60)
    assert authorization == "Bearer t"
    assert body == {
        "job": "a",
        "stint": 3,
        "epoch": 1,
        "samples_consumed": 70,
        "num_samples": 500,
        "gpus": [{"host": "node-a", "address": "10.0.0.1", "ids": ["0", "1", "2"]}],
    }


def test_where_nobody_asks_nothing_is_told() -> None:
    assert reporter_of(None) is None
    assert reporter_of("") is None


@pytest.mark.parametrize(
    ("visible", "gpus"), [("", ()), ("0", ("0",)), ("2,3", ("2", "3")), ("GPU-a,", ("GPU-a",))]
)
def test_a_worker_knows_its_gpus(
    monkeypatch: pytest.MonkeyPatch, visible: str, gpus: tuple[str, ...]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert WorkerIdentity.own(4).gpus == gpus
    assert WorkerIdentity.own(4).rank == 4
