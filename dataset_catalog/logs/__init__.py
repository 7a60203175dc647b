"""How are the catalog's records kept in topics, and how are topics read?

Others import committed_reader.py, which reads the committed records of any topic, and internal_topics.py,
which makes, reads and writes the compacted topics that programs keep notes in. The rest is catalog.py's: from
records to manifests (manifest_log.py) and loads (progress_log.py), and what of both can't be read
(damaged_records.py).

Read next: internal_topics.py.
"""
