"""Which training runs get how many workers on one cluster, decided by policies that change while it runs.

Read next: state.py (what a policy is given), policies/ (the rules), decision.py (from a policy's wish to
sizes), simulation.py and bound.py (is it good?).
"""
