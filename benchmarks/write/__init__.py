"""What does balance cost a producer? `python -m benchmarks write`

`BalancedProducer` beside confluent-kafka's `Producer`, on three embedded brokers: the same records, the same
settings, a topic of the same layout for each. The plain one chooses by its default partitioner. Their windows
are short and take turns (A B B A), so that what else the machine does hits both alike; ratios are medians
over pairs of windows that follow each other, with the interval of their bootstrap distribution.

Two questions. How long until a record is acknowledged, at 20, 50 and 80 % of the rate that the brokers
sustain, with the collector well, dead, slow, and lying? And how many records a second at most, one by one and
in batches? report.py states the goals.

Brokers delete what is older than some megabytes, so that the disk has no part in it, and their Java compiles
fully, as in production.

The front is command.py; then benchmarks/windows.py (one window), collector_conditions.py, report.py.
"""
