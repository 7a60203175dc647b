"""Where a loader stands in an epoch, and how it gets there again: three kinds, from the best to what is left.

`sampled`   made by `CheckpointHook.loader`: its order is known, so it begins anywhere at once
`stateful`  has `state_dict` and `load_state_dict` (torchdata's `StatefulDataLoader`): is asked; one rank only
`skipped`   any other: what was done of an epoch is read once more and dropped

Each is told an epoch and where in it to begin, and gives batches. What counts is what the loop is done with,
not what was fetched ahead.

Read next: hook.py.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any, ClassVar

import torch

from evenload.resume.epoch_sampler import EpochSampler

__all__ = ["HookData", "data_of"]

logger = logging.getLogger(__name__)


class HookData(ABC):
    """A loader, and how far an epoch of it is. For the loop's thread.

    Attributes:
        num_batches: Of this epoch, that this rank's loop is done with.
        num_samples: Of this epoch, that all ranks are done with; 0 where nobody knows.
        can_give_again: Whether it can give a batch again that was handed out and not done.
        has_state: Whether it needs what `state` gives to begin in the middle of an epoch.
    """

    can_give_again: ClassVar[bool] = True
    has_state: ClassVar[bool] = False

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.num_batches = self.num_samples = 0

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """What has to be the same to go on, as JSON has it."""

    def position(self) -> dict[str, Any]:
        """Where it is, as JSON has it."""
        return {"facts": self.facts(), "batches": self.num_batches, "samples": self.num_samples}

    @abstractmethod
    def begin(self, epoch: int, num_batches: int, num_samples: int, state: Any) -> Iterator[Any]:
        """The batches of an epoch, from a place on.

        Args:
            epoch: From 0.
            num_batches, num_samples: That were done of it.
            state: As `state` gave it; None: at an epoch's beginning.
        """

    def got(self) -> None:
        """The loop is done with a batch."""
        self.num_batches += 1

    def state(self) -> Any:
        """What it needs besides to begin there again, if it `has_state`."""
        return None


class _Sampled(HookData):
    def __init__(self, loader: Any, sampler: EpochSampler) -> None:
        super().__init__(loader)
        self._sampler = sampler

    def facts(self) -> dict[str, Any]:
        return {"loader": "sampled", "samples": self._sampler.num_samples, "seed": self._sampler.seed}

    def begin(self, epoch: int, num_batches: int, num_samples: int, state: Any) -> Iterator[Any]:
        del state
        self.num_batches, self.num_samples = num_batches, num_samples
        self._sampler.begin(epoch, num_samples)
        return iter(self.loader)

    def got(self) -> None:
        super().got()
        self.num_samples += self._sampler.samples_of(self.num_samples)


class _Stateful(HookData):
    can_give_again = False
    has_state = True

    def facts(self) -> dict[str, Any]:
        return {"loader": "stateful"}

    def begin(self, epoch: int, num_batches: int, num_samples: int, state: Any) -> Iterator[Any]:
        del num_samples
        self.num_batches = num_batches
        _set_epoch(self.loader, epoch)
        if state is not None:
            self.loader.load_state_dict(state)
        return iter(self.loader)

    def state(self) -> Any:
        return self.loader.state_dict()


class _Skipped(HookData):
    def __init__(self, loader: Any, *, world_size: int) -> None:
        super().__init__(loader)
        self._world_size = world_size

    def facts(self) -> dict[str, Any]:
        try:
            num_batches = len(self.loader)
        except TypeError:  # it doesn't say
            num_batches = None
        return {"loader": "skipped", "batches": num_batches, "ranks": self._world_size}

    def begin(self, epoch: int, num_batches: int, num_samples: int, state: Any) -> Iterator[Any]:
        del num_samples, state
        self.num_batches = num_batches
        _set_epoch(self.loader, epoch)
        batches: Iterator[Any] = iter(self.loader)
        # Now, as PyTorch's samplers draw an epoch's order when they are asked for the first time: in the
        # random state of its beginning, whether or not it is dropped.
        first = list(islice(batches, 1))
        if not num_batches:
            return chain(first, batches)
        logger.warning(
            "going on in epoch %d: %d batches of it are read once more and dropped, as this loader can't "
            "begin anywhere; CheckpointHook.loader makes one that can",
            epoch,
            num_batches,
        )
        for _ in islice(batches, num_batches - 1):
            pass
        return batches


def data_of(loader: Any, *, world_size: int) -> HookData:
    """How this loader is begun.

    Raises:
        TypeError: It isn't one, or can't be shared by ranks.
    """
    if isinstance(sampler := getattr(loader, "batch_sampler", None), EpochSampler):
        return _Sampled(loader, sampler)
    if not hasattr(loader, "__iter__"):
        raise TypeError(f"a {type(loader).__name__} gives no batches: steps() takes a loader")
    if all(callable(getattr(loader, name, None)) for name in ("state_dict", "load_state_dict")):
        if world_size > 1:
            raise TypeError(
                f"a {type(loader).__name__} has a state of its own on each of {world_size} ranks, and a "
                "checkpoint holds one; use CheckpointHook.loader, which ranks share"
            )
        return _Stateful(loader)
    if world_size > 1 and not any(hasattr(part, "set_epoch") for part in _parts(loader)):
        logger.warning(
            "a %s gives each of %d ranks an order of its own, as far as can be seen: use "
            "CheckpointHook.loader, or a DistributedSampler",
            type(loader).__name__,
            world_size,
        )
    return _Skipped(loader, world_size=world_size)


def _set_epoch(loader: Any, epoch: int) -> None:
    """Have its order be this epoch's, wherever it comes from, and what it draws be what is drawn now."""
    for part in _parts(loader):
        if callable(set_epoch := getattr(part, "set_epoch", None)):  # of torch's DistributedSampler
            set_epoch(epoch)
        if isinstance(generator := getattr(part, "generator", None), torch.Generator):
            generator.manual_seed(torch.initial_seed())


def _parts(loader: Any) -> list[Any]:
    """A loader and its samplers, as far as it has them."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    parts = [loader, getattr(loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None)]
    return [part for part in parts if part is not None]
