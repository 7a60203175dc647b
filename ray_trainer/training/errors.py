"""What can go wrong between a session and its reader.

TrainerError
└── ReaderRankError             a reader reads another part than its session's rank

What can go wrong in a run's storage, record, checkpoints and state is in resume/errors.py.
"""

from __future__ import annotations

from evenload.ray_trainer.errors import TrainerError


class ReaderRankError(TrainerError):
    """A session's reader reads another part of the data than the session's rank has.

    Attributes:
        reader: (rank, world size) of the reader.
        session: (rank, world size) of the session's group.
    """

    def __init__(self, *, reader: tuple[int, int], session: tuple[int, int]) -> None:
        super().__init__(
            f"a process whose part of the data is {session[0]} of {session[1]}, counted from 0, has a reader "
            f"that reads part {reader[0]} of {reader[1]}, so samples would be repeated or left out. "
            "Initialise the process group before the session is made, and make the reader without rank and "
            "world_size; with Session(data_parallel=mesh), give it rank=mesh.get_local_rank(), "
            "world_size=mesh.size()."
        )
        self.reader = reader
        self.session = session
