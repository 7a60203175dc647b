"""Records by exact offset ranges, checked, each byte once.

Read next: fetch.py.
"""
