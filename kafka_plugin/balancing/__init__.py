"""Move replicas until brokers are level, one process at a time, and clean up after a process that died.

The front is balance.py (`preview_balance`, `execute_balance`, `cancel_balance`, `forget_balance`) with
config.py. router/moves/ decides which moves to make. This room carries them out (reassignment.py) under a
throttle (replication_throttle.py), and first writes down what it will change (record.py, kept by log.py).

Read next: balance.py.
"""
