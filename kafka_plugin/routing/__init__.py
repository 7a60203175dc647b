"""By which shares a topic's records go to its partitions, and where they come from.

A producer asks a `TopicRoute` (topic_route.py) for a partition. Its shares come from a collector service that
decides for all who write the topic (followed_routes.py), or are decided in this process (decided_routes.py,
which needs the extra `measure`). A load decides for its one topic by itself (topic_routing.py).

Read next: topic_route.py, routes.py.
"""
