"""What has to be done when something happens, so that nothing is lost whoever dies?

    requests, what an engine sees --> governor.py --> records.py, written to journal.py --> orders

That is one cycle (cycle.py); loop.py runs them on a thread. Only journal.py and loop.py aren't pure.

Read next: engine.py, jobs.py, governor.py.
"""
