"""How is a governor asked: over HTTP, by `evenload jobs` and by the drivers of its stints?

Read next: running.py.
"""
