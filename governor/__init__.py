"""Which training runs get how many workers on one cluster, decided by policies that change while it runs.

    service/       asked over HTTP: `evenload governor`
       |
    on_ray/        a Ray cluster as an engine          simulating/   an engine that only reckons
       |                                                   |
    governing/     from what happens to records and orders: engine.py, governor.py, cycle.py
       |
    deciding/      from the jobs there are to sizes: policies, and rules that come after each of them

Read next: deciding/ (pure), governing/.
"""
