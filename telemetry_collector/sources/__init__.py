"""Whom a collector asks: brokers by Kafka's protocol, exporters, a client's own statistics.

The front is source.py, the contract that each of them keeps, and observation.py, which makes a snapshot of
their answers. A new kind of measurement is one more file with one class.

Read next: source.py.
"""
