"""What is a dataset in Kafka?

A dataset is a topic, and a manifest that lists which of the topic's records are the dataset's. Read in
this order: runs.py and manifest.py (the description), encoding.py, sample_hash.py and record_header.py
(what is in a record), progress.py (a load under way), catalog.py (where descriptions are kept), verify.py
(whether the topic still is what was loaded).

Nothing is imported here: a producer needs no more than the modules that it names.
"""
