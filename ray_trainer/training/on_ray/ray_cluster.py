"""The Ray cluster that a run is on: one that runs already, or one of our own for as long as the run lasts.

A cluster of our own is made new (`address="local"`): joining whatever was started last on this machine would
let two trainings that know nothing of each other share their cores, and end together. It has no dashboard,
reports no usage, sends no worker's output to the terminal, and nothing of it is left when the run ends,
however it ends. Ray 2.60 starts it with token authentication (RAY_AUTH_MODE), with a token that it keeps in
the user's ~/.ray; a running cluster may ask for one, too: then its token has to be there before.

Read next: trainer.py.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import psutil
import ray
import stamina

from evenload.ray_trainer.training.events import Note
from evenload.ray_trainer.training.on_ray.errors import RayUnavailableError, WorkersUnavailableError
from evenload.ray_trainer.training.on_ray.ray_internals import divert_notices
from evenload.ray_trainer.training.train_config import TrainConfig

__all__ = ["ClusterFacts", "joined_cluster"]

_QUIET: Final = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray warns that it will no longer hide GPUs from workers that asked for none; nothing here minds.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Starting a worker is mostly importing torch; on a busy machine that takes longer than Ray's minute.
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "300",
    # Its pool of idle workers is of no use to a run, and each costs a second of start-up on a small machine.
    "RAY_prestart_worker_first_driver": "0",
}

# Nobody takes a single machine away, and nobody looks at metrics without a dashboard.
_ALONE: Final = {"RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0", "RAY_TRAIN_METRICS_ENABLED": "0"}

_GOODBYE_S: Final = 5.0
_START_TRIES: Final = 4


@dataclass(frozen=True)
class ClusterFacts:
    """What the run has to know of its cluster.

    Attributes:
        is_own: It was started for this run alone.
        cpus_per_worker: Cores for each worker.
        has_gpus: There is a GPU for each worker.
    """

    is_own: bool
    cpus_per_worker: int
    has_gpus: bool


@contextmanager
def joined_cluster(config: TrainConfig, tell: Callable[[Note], None]) -> Iterator[ClusterFacts]:
    """Join the cluster that is meant, or start one; leave it, or end it, after the block.

    Args:
        tell: Gets a sentence before whatever takes seconds.

    Raises:
        WorkersUnavailableError: The workers will never fit on it.
        RayUnavailableError: No cluster answers at the address given, or none can be started here.
    """
    address = config.ray_address or os.environ.get("RAY_ADDRESS") or None
    is_alone = address is None and not ray.is_initialized()
    with _environment(config, _ALONE if is_alone else {}):
        if ray.is_initialized():
            yield _facts(config, is_own=False)
            return
        servers = _join(config, address, tell)
        try:
            yield _facts(config, is_own=address is None)
        finally:
            started = [*servers, *(child for server in servers for child in _children(server))]
            ray.shutdown()
            _end(started)


def _join(config: TrainConfig, address: str | None, tell: Callable[[Note], None]) -> list[psutil.Process]:
    """Join or start a cluster.

    Returns:
        The servers that were started for it. Other children of this process, embedded brokers say, are none
        of Ray's and live on.
    """
    if address:
        tell(Note(f"joining the Ray cluster at {address}"))
        return _init(config, address)
    tell(Note("starting Ray on this machine"))
    # Ray gives its servers 30 s to start, which a machine with other work to do may need more than.
    start = stamina.retry_context(on=RayUnavailableError, attempts=_START_TRIES, timeout=None)
    for attempt in start:
        if attempt.num > 1:
            tell(Note(f"Ray did not start in time; starting it again (try {attempt.num} of {_START_TRIES})"))
        with attempt:
            return _init(config, None)
    raise AssertionError("the last attempt returns or raises")


def _init(config: TrainConfig, address: str | None) -> list[psutil.Process]:
    cores = os.cpu_count() or 1
    share = config.cpus_per_worker or max(1, cores // config.workers)
    before = _children(psutil.Process())
    divert_notices()
    try:
        ray.init(
            address=address or "local",
            # On this machine alone, more workers than cores are slow, but right; Ray would wait for ever.
            num_cpus=None if address else max(cores, config.workers * share),
            include_dashboard=None if address else False,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except Exception as error:  # Ray raises bare Exceptions here
        ray.shutdown()
        _end([p for p in _children(psutil.Process()) if p not in before])
        lines = str(error).strip().splitlines()
        raise RayUnavailableError(address, lines[0] if lines else type(error).__name__) from error
    return [] if address else [p for p in _children(psutil.Process()) if p not in before]


def _children(process: psutil.Process) -> list[psutil.Process]:
    """All below a process, in any generation; none when it has ended."""
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _end(processes: list[psutil.Process]) -> None:
    """Wait until Ray's processes are gone: some notice only a second later that their raylet is."""
    _, late = psutil.wait_procs(processes, timeout=_GOODBYE_S)
    for process in late:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(late, timeout=_GOODBYE_S)


def _facts(config: TrainConfig, *, is_own: bool) -> ClusterFacts:
    resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
    gpus = resources.get("GPU", 0.0)
    has_gpus = gpus >= config.workers
    cores = os.cpu_count() or 1
    per_worker = config.cpus_per_worker or (max(1, cores // config.workers) if is_own else 1)
    wanted = {"CPU": float(per_worker * config.workers)}
    if config.device == "gpu":
        wanted["GPU"] = float(config.workers)
    if any(amount > resources.get(name, 0.0) for name, amount in wanted.items()):
        raise WorkersUnavailableError(wanted, resources)
    return ClusterFacts(is_own, per_worker, has_gpus)


@contextmanager
def _environment(config: TrainConfig, more: Mapping[str, str]) -> Iterator[None]:
    """Ray reads these when it starts; what the user has set is left as it is."""
    wanted = {**_QUIET, **more, "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": str(config.health_check_interval_s)}
    added = {name: value for name, value in wanted.items() if name not in os.environ}
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)
