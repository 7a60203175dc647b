"""What is used of kafka-python without its promise is as it was, and used in one module alone.

Where this fails with a new version: read what has changed, mend kafka_connection/kafka_python_internals.py,
and widen the range in pyproject.toml once the tests with brokers pass.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kafka
import pytest
from kafka.admin import KafkaAdminClient
from kafka.future import Future
from kafka.net.compat import KafkaNetClient
from kafka.net.connection import KafkaConnection
from kafka.net.inet import KafkaNetSocket
from kafka.net.manager import KafkaConnectionManager
from kafka.net.sasl import get_sasl_mechanism
from kafka.net.sasl.abc import SaslMechanism
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.net.selector import NetworkSelector
from kafka.protocol.admin import DescribeConfigsRequest
from kafka.protocol.parser import KafkaProtocol

from evenload.kafka_connection import kafka_python_internals as internals

ROOT = Path(__file__).parents[3]
ALONE = ROOT / "kafka_connection" / "kafka_python_internals.py"
PRIVATE_MODULES = ("kafka.future", "kafka.net", "kafka.protocol")


@pytest.mark.parametrize(
    ("function", "signature"),
    [
        (Future.add_both, "(self, f, *args, **kwargs)"),
        (KafkaAdminClient._get_cluster_metadata, "(self, topics)"),
        (KafkaConnection.send_request, "(self, request, request_timeout_ms=None)"),
        (KafkaConnectionManager.__init__, "(self, net, **configs)"),
        (KafkaConnectionManager.call_soon, "(self, coro, *args)"),
        (KafkaConnectionManager.close, "(self, node_id=None, timeout_ms=None)"),
        (
            KafkaConnectionManager.get_connection,
            "(self, node_id, timeout_ms=None, pop_on_close=True, refresh_metadata_on_err=True, "
            "reset_backoff_on_connect=True)",
        ),
        (KafkaConnectionManager.run, "(self, coro, *args)"),
        (KafkaConnectionManager.send, "(self, request, node_id=None, request_timeout_ms=None)"),
        (KafkaNetClient.__init__, "(self, net=None, manager=None, **configs)"),
        (KafkaNetClient.close, "(self, node_id=None)"),
        (KafkaNetSocket.sock_connect, "(self, net, sock, sockaddr, timeout_at=None)"),
        (KafkaProtocol.__init__, "(self, **config)"),
        (KafkaProtocol.receive_bytes, "(self, data)"),
        (KafkaProtocol.send_bytes, "(self)"),
        (KafkaProtocol.send_request, "(self, request, correlation_id=None)"),
        (NetworkSelector.__init__, "(self, **configs)"),
        (NetworkSelector.close, "(self)"),
        (NetworkSelector.start, "(self)"),
        (NetworkSelector.stop, "(self, timeout_ms=None)"),
        (SaslMechanism.__init__, "(self, **config)"),
        (SaslMechanism.auth_bytes, "(self)"),
        (SaslMechanism.is_authenticated, "(self)"),
        (SaslMechanism.is_done, "(self)"),
        (SaslMechanism.receive, "(self, auth_bytes)"),
        (AbstractTokenProvider.token, "(self)"),
        (get_sasl_mechanism, "(name)"),
        (kafka.cluster.ClusterMetadata.bootstrap_brokers, "(self)"),
        (kafka.cluster.ClusterMetadata.brokers, "(self)"),
        (kafka.cluster.ClusterMetadata.update_metadata, "(self, metadata)"),
    ],
)
def test_a_function_is_called_as_before(function: Callable[..., Any], signature: str) -> None:
    assert str(inspect.signature(function)) == signature


@pytest.mark.parametrize(
    ("made_by", "attributes"),
    [
        (Future.__init__, {"exception", "value"}),
        (KafkaAdminClient.__init__, {"_controller_id", "_manager", "bootstrap"}),
        (KafkaConnectionManager.__init__, {"_auth_failures", "_net", "cluster"}),
        (KafkaNetClient.__init__, {"_manager"}),
    ],
)
def test_an_object_has_the_attributes_that_it_had(made_by: Callable[..., Any], attributes: set[str]) -> None:
    assert attributes <= set(made_by.__code__.co_names)


@pytest.mark.parametrize(
    ("request_type", "version", "fields"),
    [
        (internals.ApiVersionsRequest, 3, {"client_software_name", "client_software_version"}),
        (DescribeConfigsRequest, 1, {"resources", "include_synonyms", "include_documentation"}),
        (
            DescribeConfigsRequest.DescribeConfigsResource,
            1,
            {"resource_type", "resource_name", "configuration_keys"},
        ),
        (internals.DescribeLogDirsRequest, 1, {"topics"}),
        (internals.DescribeLogDirsRequest.DescribableLogDirTopic, 1, {"topic", "partitions"}),
        (internals.FindCoordinatorRequest, 4, {"key_type", "coordinator_keys"}),
        (
            internals.InitProducerIdRequest,
            3,
            {"transactional_id", "transaction_timeout_ms", "producer_id", "producer_epoch"},
        ),
        (internals.ListPartitionReassignmentsRequest, 0, {"timeout_ms", "topics"}),
        (internals.MetadataRequest, 12, {"topics", "allow_auto_topic_creation"}),
        (internals.MetadataRequest.MetadataRequestTopic, 12, {"name"}),
        (internals.SaslAuthenticateRequest, 2, {"auth_bytes"}),
        (internals.SaslHandshakeRequest, 1, {"mechanism"}),
        (internals.WriteTxnMarkersRequest, 1, {"markers"}),
        (
            internals.WriteTxnMarkersRequest.WritableTxnMarker,
            1,
            {"producer_id", "producer_epoch", "transaction_result", "topics", "coordinator_epoch"},
        ),
        (
            internals.WriteTxnMarkersRequest.WritableTxnMarker.WritableTxnMarkerTopic,
            1,
            {"name", "partition_indexes"},
        ),
    ],
)
def test_a_message_has_the_fields_that_are_written(request_type: Any, version: int, fields: set[str]) -> None:
    assert fields <= set(request_type.fields)
    assert getattr(request_type, "max_version", version) >= version  # a message within one has none


def test_a_socket_is_chosen_by_the_scheme_of_the_proxy() -> None:
    assert type(KafkaNetSocket("direct://")) is internals._DirectSocket


def private_uses(source: str, private_names: set[str]) -> Iterator[str]:
    """Imports of what is private to kafka-python, and attributes of others' that are called as its are."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom | ast.Import):
            modules = (
                [node.module] if isinstance(node, ast.ImportFrom) else [name.name for name in node.names]
            )
            yield from (each for each in modules if each and each.startswith(PRIVATE_MODULES))
        elif isinstance(node, ast.Attribute) and node.attr in private_names:
            owner = node.value.id if isinstance(node.value, ast.Name) else None
            yield from [node.attr] if owner not in ("self", "cls") else []


def names_that_are_private() -> set[str]:
    """What kafka-python's clients call private."""
    sources = [*Path(kafka.__file__).parent.glob("admin/*.py"), *Path(kafka.__file__).parent.glob("net/*.py")]
    return {
        node.attr
        for source in sources
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__")
    } - {"_asdict", "_fields", "_make", "_replace"}  # every named tuple has these


def test_no_other_module_uses_what_is_private_to_kafka_python() -> None:
    private_names = names_that_are_private()
    links = [each.name for each in (ROOT / "evenload").iterdir() if each.is_symlink()]
    found = {
        path
        for package in ("benchmarks", "evenload", *links)
        for path in (ROOT / package).rglob("*.py")
        if any(private_uses(path.read_text(), private_names))
    }
    assert found == {ALONE}


def test_a_private_use_is_found() -> None:
    source = "from kafka.net.manager import X\nimport kafka.future\nself._admin._manager.run(self._manager)"
    assert list(private_uses(source, {"_manager"})) == ["kafka.net.manager", "kafka.future", "_manager"]
