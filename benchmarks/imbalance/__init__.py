"""What does it take to level brokers that are 70/20/10 % full? `python -m benchmarks imbalance`

Two answers, on four embedded brokers of the same capacity. By writing: data keeps coming in, half-way a
fourth broker is added, and what counts is how many bytes have to be written until the spread is below 1
point, beside the least that any writer needs. By moving: `evenload balance`, bytes beside the linear
program's least, and what it costs a plain producer's latency, throttled and not.

evenload passes where it is level after at most 1.25 times the least possible, and its moves take at most 1.1
times theirs. What moves cost a producer is shown, not judged.

The front is command.py; then writing.py, moving.py with steady_writer.py (the plain producer), report.py.
"""
