"""A run from its first step to its last, through any number of restarts.

    on_ray/             the driver and its workers, on Ray                  (trainer.py)
       |
    session.py          what a loop calls; running_attempt.py does what is beside the training
       |
    attempt.py          where to begin
       |
    books/              who was handed what                                 (ledger.py)

Checkpoints, their storage and the fence are the package resume's, which knows no books. The run
(running_attempt.py, run_record.py, audit.py) knows both.

Read next: session.py (what a worker's loop calls), on_ray/trainer.py (the driver), audit.py.
"""
