"""The model as the ranks share it: wrapped, its gradients in step.

`DistributedDataParallel` averages gradients over ranks. The loop wants the gradient of the whole step's
loss, a sum over samples divided by how many there are in all; so each rank's loss is a sum, times the
number of ranks, over the global count (`session.backward`), and the average comes out as that gradient,
however unevenly the samples are divided.

Read next: session.py.
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from evenload.ray_trainer.training.run_context import current_run
from evenload.resume.state_copy import is_sharded

__all__ = [
    "has_batch_norm",
    "model_device",
    "prepare_model",
    "set_gradient_sync",
]


def prepare_model(
    model: nn.Module, *, bit_equal: bool = False, device: torch.device | str | None = None
) -> nn.Module:
    """Move a model to its device and, with several ranks, let them share its gradients.

    Args:
        bit_equal: Keep the buckets of gradients as they are at the first step. By default they are built
            anew after it, in the order in which gradients came, and the order of sums over ranks changes
            with them: a resumed run would differ from an uninterrupted one by rounding, from 3 ranks on.
            Costs a search for unused parameters each step: a few percent (docs/decisions/0022).
        device: Where to; None: this rank's GPU where there is one, else the CPU.

    Raises:
        ValueError: The model is sharded in a way that leaves ranks without each other's gradients.

    Returns:
        The model itself with one rank, or where it is sharded already; else wrapped in
        DistributedDataParallel.
    """
    if sharded := [each for each in model.parameters() if is_sharded(each)]:
        if bit_equal or device is not None:
            raise ValueError("bit_equal and device are for a model that isn't sharded yet")
        shares_gradients = any(hasattr(each, "set_requires_gradient_sync") for each in model.modules())
        if not shares_gradients and sharded[0].device_mesh.size() < dist.get_world_size():
            raise ValueError(
                "the model's layers are shared between some ranks, and nobody averages its gradients over "
                "the others: fully_shard(model, mesh=mesh['dp']), whatever its size"
            )
        return model
    chosen = torch.device(device) if device is not None else _own_device()
    model = model.to(chosen)
    if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
        return model
    return DistributedDataParallel(
        model,
        device_ids=[chosen.index] if chosen.type == "cuda" and chosen.index is not None else None,
        find_unused_parameters=bit_equal,
        gradient_as_bucket_view=True,
    )


def set_gradient_sync(model: nn.Module, *, is_on: bool) -> None:
    """Whether the next backward pass shares gradients.

    `no_sync()` has to enclose the forward pass as well, and a generator that yields microbatches can't
    enclose what its caller does with them: so what `no_sync` sets is set here, before the forward pass.
    """
    for module in (model, getattr(model, "_orig_mod", None)):
        if isinstance(module, DistributedDataParallel):
            module.require_backward_grad_sync = is_on
        elif callable(set_sync := getattr(module, "set_requires_gradient_sync", None)):  # of fully_shard
            set_sync(is_on)


def has_batch_norm(model: nn.Module) -> bool:
    """Whether it normalises over the samples of a batch, so that how they are divided matters."""
    return any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules())


def model_device(model: nn.Module) -> torch.device:
    """Where its first parameter is; the CPU for a model without parameters."""
    return next((parameter.device for parameter in model.parameters()), torch.device("cpu"))


def _own_device() -> torch.device:
    context = current_run()
    if not torch.cuda.is_available() or (context is not None and context.device == "cpu"):
        return torch.device("cpu")
    # Ray Train has made the worker's GPU the current one; torchrun leaves that to the program.
    own = torch.cuda.current_device() if context is not None else int(os.environ.get("LOCAL_RANK", "0"))
    return torch.device("cuda", own)
