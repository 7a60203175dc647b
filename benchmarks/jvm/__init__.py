"""What does evenload's jar cost who loads it, and what a push of metrics? `python -m benchmarks jvm`

A choice of a partition, beside Kafka's own partitioner (KIP-794) called as its producer calls it, in turn in
one JVM: within a turn, at a turn's end, with four threads at a time, and the longest calls. A push, 100 a
second: the broker's request thread, the thread behind it, what the collector service takes to read one, and
what a producer feels of it. What a window of writing costs is in `benchmarks write`; what an idle producer
costs is here.

The front is command.py; then beside_pushes.py (a producer beside pushes). Java programs are in
benchmarks/java/.
"""
