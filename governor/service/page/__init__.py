"""What a person sees of a governor: the page, and what it shows.

live_page.py is the front. overview.py makes what is shown out of a governor, findings.py says in sentences
what an operator has to know, slot_history.py remembers the last hour; page.html draws.

Read next: overview.py.
"""
