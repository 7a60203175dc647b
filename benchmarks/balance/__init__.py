"""Is it true that brokers end up even? `python -m benchmarks balance`

Every strategy loads the same records into the same situation, on real brokers; what counts is what their log
folders hold in the end, beside the best that any choice of partitions could have reached. evenload passes a
layout when, in each of its loads, the highest utilisation and the spread are at most 1 point over that.

The front is command.py; then runs.py (each strategy on each layout), route_cost.py (what a choice costs) and
report.py (tables and picture). Beside this folder, as others use them too: layouts.py (the situations),
strategies.py and writers.py (who is compared), outcome.py and optimum.py (what is compared).
"""
