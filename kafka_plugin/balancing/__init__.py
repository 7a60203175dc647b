"""How replicas are moved until brokers are level, by one process at a time, and put in order after any death.

The front is balance.py (`preview_balance`, `execute_balance`, `cancel_balance`, `forget_balance`) with
config.py. Which moves to make is router/moves/'s to say. This carries them out (reassignment.py), slowly
enough (replication_throttle.py), and writes down before what it changes (record.py, kept by log.py).

Read next: balance.py.
"""
