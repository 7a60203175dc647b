"""What a `BalancedProducer` does with records: turns, delivery reports, batches, and topics that aren't open.

Read next: topic_turns.py, waiting.py.
"""
