"""Records by exact offset ranges, checked.

Read next: fetch.py.
"""
