"""A run from its first step to its last, through any number of restarts.

Read next: session.py (what a worker's loop calls), trainer.py (the driver), audit.py.
"""
