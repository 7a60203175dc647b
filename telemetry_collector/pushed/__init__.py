"""What Kafka's own clients push about themselves (KIP-714): claims, made into figures about brokers.

The front is pushed_clients.py (who has pushed lately), felt.py (what all of them feel) and client_figures.py
(what one push says). Pushes come by way of brokers, whose plugin (java/) hands them on to the service;
anybody who may ask a broker anything may push, so nothing here takes one client's word for anything.

Read next: client_figures.py.
"""
