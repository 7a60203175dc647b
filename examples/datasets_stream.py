"""A dataset that the `datasets` library reads, streamed into a topic without ever holding all of it.

python examples/datasets_stream.py reviews.parquet --topic reviews --bootstrap-servers broker:9092

Lines marked with "evenload" are all that was changed; README.md beside this file shows them as a diff. (To
train on it, `evenload ingest` does more: it can be resumed, and keeps a manifest of what is there.)
"""

import argparse
import json
import sys
from pathlib import Path

import datasets
from confluent_kafka import KafkaError

from evenload import BalancedProducer  # evenload: was `from confluent_kafka import Producer`
from evenload.kafka_connection import resolve_connection  # evenload

READERS = {".csv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet", ".txt": "text"}
ROWS_A_BATCH = 500


def rows_of(path):
    """The rows of a file, as dicts, as they are read."""
    return datasets.load_dataset(READERS[path.suffix], data_files=str(path), split="train", streaming=True)


def send_all(producer, topic, rows, failures):
    """Send each row as JSON, some hundred in one call; return how many. `failures` gets what is refused."""
    num_rows = 0
    for batch in rows.batch(ROWS_A_BATCH):
        columns = zip(*batch.values(), strict=True)
        values = [json.dumps(dict(zip(batch, row, strict=True))).encode() for row in columns]
        num_rows += len(values)
        left = [{"value": value} for value in values]
        while left:
            producer.produce_batch(topic, left)
            refused = [each for each in left if "_error" in each]
            failures += [each["_error"] for each in refused if not is_queue_full(each["_error"])]
            left = [{"value": each["value"]} for each in refused if is_queue_full(each["_error"])]
            producer.poll(0.1 if left else 0)
    return num_rows


def is_queue_full(error):
    """Whether trying again after a while helps; it does not where a row is too large for a record."""
    return error.code() == KafkaError._QUEUE_FULL


def main():
    parser = argparse.ArgumentParser(description="Stream a dataset row by row into a Kafka topic.")
    parser.add_argument("file", type=Path, help=f"one of {', '.join(READERS)}")
    parser.add_argument("--topic", required=True)
    parser.add_argument("--bootstrap-servers", help="host:port,...; default: the embedded cluster")
    parser.add_argument("--connection", type=Path, help="a JSON file: capacities, TLS, SASL")
    options = parser.parse_args()

    failures = []

    def told(error, _message):
        if error is not None:
            failures.append(error)

    connection = resolve_connection(options.bootstrap_servers, options.connection)  # evenload
    settings = {
        "bootstrap.servers": connection.bootstrap_servers,
        "on_delivery": told,
    }
    producer = BalancedProducer(settings, connection=connection)  # evenload: was `Producer(settings)`
    producer.expect(options.topic, options.file.stat().st_size)  # evenload: if it is about known; not needed
    num_rows = send_all(producer, options.topic, rows_of(options.file), failures)
    producer.flush()
    producer.close()  # evenload: ends the collector

    print(f"{num_rows - len(failures)} rows stored, {len(failures)} not", *failures[:3])
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
