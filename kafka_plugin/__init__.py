"""How bytes are put into Kafka, and moved there.

Rooms: routing/ (shares of a topic, and where they come from), producing/ (what a producer does with
records), sources/ (what can be loaded), loading/ (a dataset into a topic, exactly once), balancing/ (replicas
moved until brokers are level). Flat files beside them are drop-in producers (producer.py, partitioner.py).
Loading and balancing both write in transactions: transactional_writer.py, with transaction_markers.py below
it.

Read next: loading/loader.py or producer.py.
"""
