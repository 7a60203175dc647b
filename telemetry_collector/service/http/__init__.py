"""How a service is reached: its port, its routes, what may be sent.

The front is server.py (`make_app`) and page_routes.py; connections are http_edge's. Nothing here measures or
decides: a request becomes a call of collector_service.py or page/, and its answer a response.

Read next: server.py.
"""
