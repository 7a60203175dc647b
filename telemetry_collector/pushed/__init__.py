"""What Kafka's own clients push about themselves (KIP-714): claims, made into figures about brokers. Pure.

The front is client_figures.py (what one push says) and pushed_clients.py (what all who push lately feel).
Pushes come by way of brokers, whose plugin (java/) hands them on to the service; anybody who may ask a broker
anything may push, so nothing here takes one client's word for anything.

Read next: client_figures.py.
"""
