"""What is a dataset in Kafka?

A dataset is a topic, and a manifest that lists which of the topic's records are the dataset's.

    catalog.py      which datasets there are, and which loads       (verify.py: whether a topic still is one)
       |
    logs/           how what the catalog knows is kept in topics, and how topics are read
       |
    records/        what is in a record: samples as bytes, a header, hashes
       |
    manifest.py     what describes a dataset                        (extents.py; of a load: progress.py)

Imports go downwards only. Nothing is imported here: a producer needs no more than the modules that it names.

Read next: extents.py and manifest.py, then records/, progress.py, catalog.py, verify.py.
"""
