"""The page as `evenload collector` serves it: of real brokers, with what a real producer reports."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from evenload.kafka_connection import Connection
from evenload.kafka_plugin.config import ProducerConfig
from evenload.kafka_plugin.producer import BalancedProducer
from evenload.kafka_plugin.topics import create_topic
from evenload.local_cluster import LocalCluster

PATIENCE_S = 60
MAIN = "from evenload.cli import main; main()"


@pytest.fixture
def collector_url(cluster: LocalCluster) -> Iterator[str]:
    """A collector service of its own, for the session's cluster."""
    servers = cluster.bootstrap_servers
    command = ["collector", "--json", "--port", "0", "--interval", "0.3", "--bootstrap-servers", servers]
    process = subprocess.Popen([sys.executable, "-c", MAIN, *command], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        said = ""
        while not said.rstrip().endswith("}"):
            line = process.stdout.readline()
            assert line, "it ended before it served"
            said += line
        yield json.loads(said)["collector_url"]
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE_S)


def wait_for(url: str, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        with urllib.request.urlopen(f"{url}/v1/overview", timeout=60) as response:
            overview = json.load(response)
        if holds(overview):
            return overview
        time.sleep(0.2)
    pytest.fail(f"it never showed: {overview}")


def test_the_page_shows_real_brokers_and_how_a_real_producer_routes(
    connection: Connection, collector_url: str, topic_name: str, browser: Browser
) -> None:
    create_topic(
        connection,
        topic_name,
        num_partitions=3,
        replication=1,
        assignments=None,
        configs={},
        timeout_s=60,
    )
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    page.goto(collector_url)
    expect(
        page.locator("#brokers").get_by_role("row").filter(has_text=re.compile(r"Broker \d"))
    ).to_have_count(3)
    watched = connection.model_copy(update={"collector_url": collector_url})
    settings = connection.confluent_config()
    with BalancedProducer(settings, connection=watched, config=ProducerConfig(report_s=0.2)) as producer:
        for _ in range(300):
            producer.produce(topic_name, b"x" * 1000)
        producer.flush(60)

        def is_shown(seen: dict[str, Any]) -> bool:
            routes = [route for route in seen["routes"] if route["topic"] == topic_name]
            # It may report before it has sent all.
            are_whole = sorted(route["sent_bytes"] for route in routes) == [0, 300_000]
            return are_whole and all(route["reason"] is None for route in routes)

        seen = wait_for(collector_url, is_shown)
    by_producer = {r["producer"]: r["sent_bytes"] for r in seen["routes"] if r["topic"] == topic_name}
    assert by_producer["decided by this service"] == 0
    assert {broker["willingness"] for broker in seen["brokers"]} == {1.0}
    assert seen["history"]
    assert seen["findings"]
    expect(page.locator("body")).to_contain_text(topic_name)
    page.close()
