"""Train from datasets in Kafka: every sample once an epoch, through any crash or change of size.

    training    the run: session, checkpoints, ledger, audit, driver, workers   (recipes: ready-made loops)
       |
    reading     an epoch as batches of tensors: DatasetReader, in any PyTorch loop
       |
    fetching    records by exact offset ranges, checked
       |
    planning    which sample is when and where; pure

Imports go downwards only; errors.py is below all of them, and each room's own errors stand in it.

Read next: planning/plan.py.
"""
