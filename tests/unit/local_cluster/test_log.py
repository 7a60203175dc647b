from __future__ import annotations

from evenload.local_cluster.log import START_MARK, last_error_line


def test_a_cause_says_more_than_what_it_caused() -> None:
    log = """\
2026-01-01T00:00:00.000+0000 ERROR kafka.Kafka$ - Exiting Kafka due to fatal exception
org.apache.kafka.common.KafkaException: Socket server failed to bind to 127.0.0.1:9092
\tat kafka.network.Acceptor.openServerSocket(SocketServer.scala:100)
Caused by: java.net.BindException: Address already in use
\tat java.base/sun.nio.ch.Net.bind0(Native Method)
2026-01-01T00:00:01.000+0000 INFO kafka.server - shut down
"""
    assert last_error_line(log) == "java.net.BindException: Address already in use"


def test_an_exception_without_a_cause_is_it() -> None:
    log = 'Exception in thread "main" java.lang.RuntimeException: Invalid cluster.id\n\tat a.b(C.java)\n'

    assert last_error_line(log) == "java.lang.RuntimeException: Invalid cluster.id"


def test_without_an_exception_the_last_complaint_is_it_without_its_time() -> None:
    log = "2026-01-01T00:00:00.000+0000 ERROR kafka.log - disk is full\nlater words\n"

    assert last_error_line(log) == "kafka.log - disk is full"


def test_an_earlier_start_does_not_count() -> None:
    log = f"{START_MARK} kafka.Kafka\nCaused by: old trouble\n{START_MARK} kafka.Kafka\nall is well\n"

    assert last_error_line(log) == "all is well"


def test_silence_is_said_to_be_silence() -> None:
    assert last_error_line(f"{START_MARK} kafka.Kafka\n") == "it said nothing"
