"""Which replicas to move so that brokers are level.

The front is planning.py (`plan_moves`), and plan.py, the values that it returns. Inside, search.py chooses
hops of copies in a model of the cluster (state.py), steps.py puts them into steps that fit, and bound.py
computes the fewest bytes that any plan has to move.

Read next: planning.py.
"""
