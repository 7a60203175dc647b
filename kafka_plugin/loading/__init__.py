"""How a dataset gets into a topic of its own, each sample exactly once.

The front is loader.py (`load_dataset`), and forecast.py (`forecast_load`: where a load would leave the
brokers). A load's steps are in loader.py, its transactions in load_writer.py, its records in
record_stream.py, its partitions in load_routing.py.

Read next: loader.py.
"""
