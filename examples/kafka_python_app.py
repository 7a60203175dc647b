"""Sensor readings into a topic, with kafka-python.

python examples/kafka_python_app.py --sensors 40 --readings 500 --bootstrap-servers broker:9092

Lines marked with "evenload" are all that was changed; README.md beside this file shows them as a diff.
"""

import argparse
import json
import random
import sys
from pathlib import Path

from kafka import KafkaProducer

from evenload import NodeAwarePartitioner  # evenload
from evenload.kafka_connection import resolve_connection  # evenload

READING_BYTES = 548  # about


def readings(num_sensors, num_readings):
    """What the sensors would say: each in turn, a spectrum of 64 values around its own mean."""
    chance = random.Random(0)
    means = [chance.uniform(15, 25) for _ in range(num_sensors)]
    for number in range(num_readings):
        for sensor, mean in enumerate(means):
            spectrum = [round(chance.gauss(mean, 2), 3) for _ in range(64)]
            yield {"sensor": sensor, "number": number, "spectrum": spectrum}


def main():
    parser = argparse.ArgumentParser(description="Send readings of made-up sensors to Kafka.")
    parser.add_argument("--sensors", type=int, default=40)
    parser.add_argument("--readings", type=int, default=500, help="of each sensor")
    parser.add_argument("--topic", default="sensor-readings")
    parser.add_argument("--bootstrap-servers", help="host:port,...; default: the embedded cluster")
    parser.add_argument("--connection", type=Path, help="a JSON file: capacities, TLS, SASL")
    options = parser.parse_args()

    connection = resolve_connection(options.bootstrap_servers, options.connection)  # evenload
    partitioner = NodeAwarePartitioner(connection)  # evenload
    producer = KafkaProducer(
        bootstrap_servers=connection.bootstrap_servers,
        partitioner=partitioner,  # evenload
        acks="all",
        value_serializer=lambda reading: json.dumps(reading).encode(),
    )
    total_bytes = options.sensors * options.readings * READING_BYTES
    partitioner.expect(options.topic, total_bytes)  # evenload: if it is about known; not needed
    sent = [producer.send(options.topic, each) for each in readings(options.sensors, options.readings)]
    producer.flush()
    producer.close()
    partitioner.close()  # evenload: ends the collector

    num_stored = sum(future.succeeded() for future in sent)
    print(f"{num_stored} readings stored, {len(sent) - num_stored} not")
    return 0 if num_stored == len(sent) else 1


if __name__ == "__main__":
    sys.exit(main())
