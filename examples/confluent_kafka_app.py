"""Shop events from a file of JSON lines into a topic, with confluent-kafka.

python examples/confluent_kafka_app.py shop_events.jsonl --topic shop-events --bootstrap-servers broker:9092

Lines marked with "evenload" are all that was changed; README.md beside this file shows them as a diff.
"""

import argparse
import json
import sys
from pathlib import Path

from evenload import BalancedProducer  # evenload: was `from confluent_kafka import Producer`
from evenload.kafka_connection import resolve_connection  # evenload


class Deliveries:
    """Counts what became of the events."""

    def __init__(self):
        self.num_stored = 0
        self.failures = []

    def told(self, error, message):
        if error is None:
            self.num_stored += 1
        else:
            self.failures.append(f"{message.topic()}: {error}")


def send_all(producer, topic, lines):
    """Send each event that is worth it; return what became of them."""
    deliveries = Deliveries()
    for line in lines:
        event = json.loads(line)
        if event.get("kind") == "heartbeat":
            continue
        value = json.dumps(event, separators=(",", ":")).encode()
        while True:
            try:
                producer.produce(topic, value, on_delivery=deliveries.told)
                break
            except BufferError:  # the queue is full
                producer.poll(0.1)
        producer.poll(0)
    producer.flush()
    return deliveries


def main():
    parser = argparse.ArgumentParser(description="Send shop events from a file of JSON lines to Kafka.")
    parser.add_argument("file", type=Path, help="one event a line")
    parser.add_argument("--topic", default="shop-events")
    parser.add_argument("--bootstrap-servers", help="host:port,...; default: the embedded cluster")
    parser.add_argument("--connection", type=Path, help="a JSON file: capacities, TLS, SASL")
    options = parser.parse_args()

    connection = resolve_connection(options.bootstrap_servers, options.connection)  # evenload
    settings = {"bootstrap.servers": connection.bootstrap_servers, "linger.ms": 20}
    producer = BalancedProducer(settings, connection=connection)  # evenload: was `Producer(settings)`
    producer.expect(options.topic, options.file.stat().st_size)  # evenload: if it is about known; not needed
    with options.file.open() as lines:
        deliveries = send_all(producer, options.topic, lines)
    producer.close()  # evenload: ends the collector

    print(f"{deliveries.num_stored} events stored, {len(deliveries.failures)} not", *deliveries.failures[:3])
    return 1 if deliveries.failures else 0


if __name__ == "__main__":
    sys.exit(main())
