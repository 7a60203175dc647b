"""A run from its first step to its last, through any number of restarts.

    on_ray/             the driver and its workers, on Ray                  (trainer.py)
       |
    session.py          what a loop calls; running_attempt.py does what is beside the training
       |
    attempt.py          where to begin: claim (fence.py), checkpoint, state (kept_state.py)
       |
    checkpoint.py       what a checkpoint is; checkpoint_writer.py writes them
    books/              who was handed what                                 (ledger.py)
       |
    storage.py          the run's folder

Checkpoints and books don't know each other. The run (running_attempt.py, run_record.py, audit.py) knows both.

Read next: session.py (what a worker's loop calls), on_ray/trainer.py (the driver), audit.py.
"""
