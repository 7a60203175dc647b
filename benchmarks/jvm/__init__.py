"""What evenload's jar costs: a choice of a partition, a push of a client's metrics; windows of Java
producers.

java.py compiles and runs the programs in sources/; command.py is `benchmarks jvm`. `benchmarks write` has the
windows.
"""
