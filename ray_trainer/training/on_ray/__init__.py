"""How does a training run on Ray: who starts the workers, follows them, and starts them again?

Others call `train` (trainer.py) where they are, or `submit` (submit.py) to have it called on a Ray cluster.

    submission.py                                                     what Ray is sent
    submit.py --> job_driver.py --> trainer.py --- ray_cluster.py     the driver, and the cluster it is on
                                        |
                                board_line.py, board.py               where both sides meet
                                        |
                              worker.py, worker_link.py               each worker, around the user's loop

Nothing else imports Ray: sessions, checkpoints and books are the same under torchrun and in a plain process.

Read next: trainer.py.
"""
