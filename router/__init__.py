"""Where a topic's next bytes should go, and what should be moved. Pure: values come in, values go out.

Routing is in this folder: router.py decides, and a route.py's `Route` is followed. Rooms: moves/ (plans that
level what is there already), forecasting/ (how full brokers would be after a load, and where a new topic
goes).

Read next: router.py.
"""
