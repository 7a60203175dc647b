"""One process that measures for any number of producers, and how they ask it.

The front is client.py (`RemoteCollector`, what producers have in place of a collector) and running.py
(`serve`, what `evenload collector` runs), with config.py. Both sides speak wire.py.

Rooms of the service's side: http/ (requests and answers), page/ (what a person sees), told/ (what producers
and loads have said). They meet in collector_service.py, which is all that a service knows.

Read next: collector_service.py, or polling.py for the clients' side.
"""
