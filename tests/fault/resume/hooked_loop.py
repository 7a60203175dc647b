"""A training with a hook, alone or as one of several ranks, that can be killed at any moment.

hooked_loop.py FOLDER [sharded] [s3://STORAGE] writes the samples of each step to FOLDER/seen-RANK.jsonl as
the step is done, and in the end the parameters to FOLDER/final.pt.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from evenload.resume.errors import StoppedError
from evenload.resume.hook import CheckpointHook

NUM_SAMPLES, BATCH, EPOCHS = 96, 4, 3
STEP_S = 0.03  # so that there is a middle in which it can be killed


def main(folder: Path, storage: str, *, is_sharded: bool) -> None:
    is_shared = "RANK" in os.environ
    if is_shared:
        dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(1, 16), nn.Dropout(0.2), nn.Linear(16, 1))
    trained: nn.Module = model
    if is_sharded:
        fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    elif is_shared:
        trained = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(trained.parameters(), lr=0.01)
    samples = torch.arange(float(NUM_SAMPLES))[:, None]
    with CheckpointHook(
        model=trained, optimizer=optimizer, run="run", storage=storage, checkpoint_interval_s=0
    ) as hook:
        loader = hook.loader(samples, batch_size=BATCH, seed=3)
        with (
            _told_when_stopped(folder / f"stopped-{hook.rank}.json"),
            (folder / f"seen-{hook.rank}.jsonl").open("a") as seen,
        ):
            for epoch in hook.epochs(EPOCHS):
                for batch in hook.steps(loader):
                    optimizer.zero_grad()
                    (trained(batch / NUM_SAMPLES) - batch).square().mean().backward()
                    optimizer.step()
                    time.sleep(STEP_S)
                    told = {"step": hook.step, "epoch": epoch, "samples": batch[:, 0].int().tolist()}
                    print(json.dumps(told), file=seen, flush=True)
        state = model.state_dict()
        if is_sharded:
            state = {name: each.full_tensor() for name, each in state.items()}
        if hook.rank == 0:
            torch.save(state, folder / "final.part")
            (folder / "final.part").rename(folder / "final.pt")
    if is_shared:
        dist.destroy_process_group()


@contextmanager
def _told_when_stopped(path: Path) -> Iterator[None]:
    """Asked to end, it writes down after which step it did, and ends well."""
    try:
        yield
    except StoppedError as error:
        path.write_text(json.dumps({"step": error.step, "saved_step": error.saved_step}))
        os._exit(0)


if __name__ == "__main__":
    folder, *options = sys.argv[1:]
    main(
        Path(folder),
        next((each for each in options if "://" in each), f"{folder}/runs"),
        is_sharded="sharded" in options,
    )
