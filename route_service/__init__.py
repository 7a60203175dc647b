"""Where the next bytes of a topic should go, decided once for all who write it, and asked over HTTP.

A room of its own between router and producers: whoever serves routes decides them here (`deciding.py`,
`service.py`), and whoever follows them needs `route_answer.py` alone.
"""
