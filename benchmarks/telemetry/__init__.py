"""What does measuring cost the brokers? `python -m benchmarks telemetry`

0, 1, 10 and 100 producers measure three brokers with 300 partitions, R = 2, each at the default settings:
once each with a `Collector` of its own, once all through one collector service (`evenload collector`, a
process). And a thousand follow the routes that one service decides, of one topic and of 500. What is
counted: the requests that brokers got, by their own metrics, and the processor time of the brokers, the
service and the producers. With the service, many producers should cost the brokers what one
costs; report.py states that.

All producers' collectors are threads of this one process, which does nothing else in a window. Brokers write
and read no data, so that what a measurement takes of them is not lost in what they do otherwise; their Java
compiles fully, as in production, and is warm.

Windows take turns, there and back (A B C C B A), so that what else the machine does hits all alike.

The front is command.py; then broker_counts.py (how it is counted), windows.py, following.py (producers that
are simulated), report.py.
"""
