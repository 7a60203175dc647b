"""How full brokers would be after a load, before a byte is written, and where to place a topic for it.

The front is load.py (`forecast_load`'s arithmetic: strategies, what is possible, advice) and placement.py
(`place_partitions`).

Read next: load.py.
"""
