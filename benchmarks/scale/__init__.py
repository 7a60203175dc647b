"""Does it hold at size? `python -m benchmarks scale`

Simulated clusters with the router's real code: 1,000 brokers, 100,000 partitions of 3 replicas, a topic of
3,000 of them. How long it takes to decide that topic's shares, how far they are from the exact optimum, what
happens when a thousand producers follow them from measurements of long ago, and what all that takes of
memory.

evenload passes when a decision takes under 0.5 s and leaves the line and the spread (decisions.py says
what they are) at most 0.5 points above the optimum's, and when no broker ever gets more than twice its fair
share in a sampling period.

The front is command.py; then clusters.py (the states), decisions.py (time, beside the optimum of
large_optimum.py), simulation.py (producers), memory.py, report.py (tables and picture).
"""
