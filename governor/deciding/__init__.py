"""Which job should have how many workers? Pure: from what there is at a moment to sizes.

    state.py --> policies/ (a wish, by anybody's rule) --> stages.py (what holds under every rule) --> sizes

Read next: state.py (what a policy is given), decision.py (all of it in one line).
"""
