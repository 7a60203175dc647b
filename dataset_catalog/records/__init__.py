"""What is in a record? Samples as bytes, a header that says which, and hashes by which both are checked.

Others import encoding.py, or record_header.py where the header is enough and Arrow isn't to be loaded. Behind
them, arrow_message.py refuses bytes that Arrow would believe too much of, and sample_hash.py hashes samples.

Nothing here knows topics or brokers.

Read next: encoding.py.
"""
