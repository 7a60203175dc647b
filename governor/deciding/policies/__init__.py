"""The rules that are built in, each a function from a state to sizes.

They are found by entry points in the group `evenload.policies`, as anybody else's are.
"""
