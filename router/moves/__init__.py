"""Which replicas to move so that brokers are level.

The front is planning.py (`plan_moves`), and plan.py, the values that it returns. Inside, search.py chooses
hops of copies in a model of the cluster (state.py), order.py puts them into an order in which each fits,
bound.py computes the fewest bytes that any plan has to move, and schedule.py says which may begin while
others run.

Read next: planning.py.
"""
