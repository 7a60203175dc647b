"""What `evenload demo` shows: the whole path on this machine, in some minutes.

The front is steps.py (`run_demo`). It draws its data with digits.py, sharing.py has two runs share a cluster,
and report.py writes the page about what happened. Read next: steps.py.
"""
