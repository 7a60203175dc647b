"""Which replicas to move so that brokers are level.

The front is planning.py (`plan_moves`), and plan.py, the values that it returns. Inside, search.py looks for
hops of copies in a cluster that is only thought of (state.py), steps.py puts them into steps that fit, and
bound.py says how few bytes any plan has to move.

Read next: planning.py.
"""
