"""Is it true? A folder for each question, or a file where one is enough.

A folder's docstring says what it asks and when evenload passes; its `command.py` is the front. What several
use stands beside: the situations (layouts.py, stage.py), what is written into them and how (records.py,
strategies.py, writers.py, one_load.py), what came out (log_folders.py, outcome.py, optimum.py,
paired_ratio.py), and where it is kept (results.py). No question imports another, and what they share imports
none of them; `lint-imports` checks that.
"""
