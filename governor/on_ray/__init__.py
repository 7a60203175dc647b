"""How is a stint a Ray job: what is sent, how far it is, what it has left behind?

Read next: ray_jobs.py.
"""
