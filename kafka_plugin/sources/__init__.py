"""What can be loaded, and how its samples are read in any order. Knows nothing of Kafka.

The front is source.py: `open_source` makes a `Source` of files, folders or arrays. A new format goes beside
text_files.py, arrow_files.py and image_folder.py, and is chosen in source.py.

Read next: source.py.
"""
