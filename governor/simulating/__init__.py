"""What would become of a workload under a policy, and how much better could any policy be?

The governor is the real one, on an engine that only reckons (simulation.py); bound.py says what nobody beats.

Read next: simulation.py, replay.py.
"""
