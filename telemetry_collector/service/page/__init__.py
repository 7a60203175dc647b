"""What a person sees of a service: the live page, and what it shows. Knows nothing of HTTP.

The front is live_page.py (`LivePage`). overview.py makes what is shown out of what the service knows, as the
values of overview_model.py; findings.py says in sentences what an operator has to know; history.py remembers
the last hour; page.html draws.

Read next: overview.py.
"""
