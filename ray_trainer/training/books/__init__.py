"""Who was handed what? The books that the ranks of a run keep, beside its checkpoints.

Others write through step_books.py, and read through ledger.py: which attempts there were, and which of their
steps the model has seen. The audit (audit.py, one folder up) also reads what is in the files, and whether
records lay where the load had put them (placement.py). loss_curve.py makes a run's losses of the same files.

The books know nothing of checkpoints. running_attempt.py and resume/checkpoint_writer.py ensure that a
checkpoint counts only after its books are written.

Read next: ledger.py.
"""
