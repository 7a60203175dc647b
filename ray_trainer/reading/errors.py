"""What can go wrong while a dataset is read, beside what fetching raises (errors.py, one folder up).

TrainerError
├── UnknownRankError            nothing says which part of the data this process reads
└── ReadError                   samples of a dataset can't be had
    ├── UndecodableColumnError  a column can't become a tensor
    └── LoaderWorkersError      a DataLoader's worker processes, where they would repeat samples
"""

from __future__ import annotations

from evenload.ray_trainer.errors import ReadError, TrainerError


class UnknownRankError(TrainerError):
    """Which of how many processes this one is can't be told, so neither which samples are its.

    Attributes:
        reason: what the environment says, and what it does not.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(
            f"which part of the data this process should read can't be told: {reason}. Initialise "
            "torch.distributed before iterating, set RANK and WORLD_SIZE, or give the reader rank= and "
            "world_size=."
        )
        self.reason = reason


class UndecodableColumnError(ReadError):
    """A column's values can't become what a training loop gets.

    Attributes:
        column: its name.
        reason: what stands in the way, and what to do.
    """

    def __init__(self, *, column: str, reason: str) -> None:
        super().__init__(f"column {column!r} can't be read: {reason}")
        self.column = column
        self.reason = reason


class LoaderWorkersError(ReadError):
    """Worker processes of a DataLoader read with copies of a reader, and what was asked for would be wrong.

    Attributes:
        num_workers: of the DataLoader. Several would each hand out every sample; of a single one, this
            process doesn't know what was handed out.
        is_started_again: a second one was started for another epoch, and would read what the first one did.
    """

    def __init__(self, *, num_workers: int, is_started_again: bool = False) -> None:
        ahead = "num_workers=0 (a DatasetReader reads and decodes ahead in threads of its own)"
        if is_started_again:
            what = (
                "the DataLoader has started another worker process, whose copy of this reader would hand out "
                f"the same samples in the same order again; give it persistent_workers=True, or use {ahead}"
            )
        elif num_workers == 1:
            what = (
                "a worker process of a DataLoader reads with a copy of this reader, so this one doesn't know "
                "what was handed out; keep the state_dict() of a torchdata StatefulDataLoader instead, the "
                f"cursor of the last batch, or use {ahead}"
            )
        else:
            what = (
                f"the DataLoader has {num_workers} worker processes, and each would hand out every sample; "
                f"use {ahead} or 1"
            )
        super().__init__(what)
        self.is_started_again = is_started_again
        self.num_workers = num_workers
