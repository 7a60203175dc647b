"""Which samples an epoch's steps have, in which order, and which rank reads them. Pure: no I/O, no clock.

Read next: plan.py.
"""
