"""What producers and loads have told a service: bounded, and forgotten by itself. Pure.

The front is told.py (`Told`, any values that end), announced.py (bytes to come, summed up) and
wanted_topics.py (which topics are measured for somebody). Only collector_service.py uses them.

Read next: told.py.
"""
