"""The settings of topics and of the broker: described, changed, refused, in effect at once, and kept."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from dualwrite.broker.core.topic_changes import ConfigOperation
from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.broker.settings.topic_settings import TOPIC_SETTINGS
from dualwrite.wire.apis import DescribeConfigsRequest, ListConfigResourcesRequest
from dualwrite.wire.error_codes import ErrorCode
from tests.support.forked import ForkedBroker
from tests.support.requests.admin_calls import (
    BROKER,
    GROUP,
    TOPIC,
    alter_request,
    change,
    config,
    describe_configs,
    replace_configs,
    set_config,
)
from tests.support.requests.calls import batch, new_topic, produce, unique
from tests.support.requests.raw_client import RawClient

SET, DELETE, APPEND, SUBTRACT = ConfigOperation
FROM_TOPIC, FROM_NODE, FROM_EVERY_NODE, FROM_START, BY_DEFAULT = 1, 2, 3, 4, 5
LOGGER, CLIENT_METRICS = 8, 16


@pytest.fixture
def started(tmp_path: Path) -> EmbeddedBroker:
    """A broker that was started with settings of its own."""
    return ForkedBroker(tmp_path / "broker", config={"log.retention.hours": "2", "transaction.max.timeout.ms": "5000"})


# --- DescribeConfigs


@pytest.mark.parametrize("version", range(1, 5))
def test_every_setting_of_a_topic_is_described(client: RawClient, version: int) -> None:
    name = new_topic(client, retention_ms="5")
    result = describe_configs(client, TOPIC, name, version=version)
    assert (result.error_code, result.resource_type, result.resource_name) == (ErrorCode.NONE, TOPIC, name)
    entries = {entry.name: entry for entry in result.configs}
    assert list(entries) == sorted(TOPIC_SETTINGS)
    own, given = entries["retention.ms"], entries["segment.ms"]
    assert (own.value, own.config_source, own.read_only, own.is_sensitive) == ("5", FROM_TOPIC, False, False)
    assert (given.value, given.config_source) == ("604800000", BY_DEFAULT)
    assert not any(entry.synonyms for entry in result.configs)
    if version >= 3:
        assert (own.config_type, entries["preallocate"].config_type, entries["cleanup.policy"].config_type) == (5, 1, 7)
        assert own.documentation is None


def test_synonyms_and_documentation_are_returned_on_request(client: RawClient) -> None:
    name = new_topic(client, retention_ms="5")
    (entry,) = describe_configs(client, TOPIC, name, "retention.ms", more=True).configs
    assert [(synonym.name, synonym.value, synonym.source) for synonym in entry.synonyms] == [
        ("retention.ms", "5", FROM_TOPIC),
        ("log.retention.hours", "168", BY_DEFAULT),
    ]
    assert "segments are removed" in entry.documentation


def test_only_the_named_settings_are_described(client: RawClient) -> None:
    name = new_topic(client)
    result = describe_configs(client, TOPIC, name, "retention.ms", "no.such.setting")
    assert [entry.name for entry in result.configs] == ["retention.ms"]


def test_values_are_written_as_kafka_writes_them(client: RawClient) -> None:
    wanted = {"cleanup_policy": "compact, delete", "preallocate": "FALSE", "min_cleanable_dirty_ratio": "5e-1"}
    name = new_topic(client, **wanted)
    written = {"cleanup.policy": "compact,delete", "preallocate": "false", "min.cleanable.dirty.ratio": "0.5"}
    for key, value in written.items():
        assert config(client, TOPIC, name, key) == (value, FROM_TOPIC)


def test_the_settings_of_the_start_are_described(started: EmbeddedBroker) -> None:
    with started, RawClient(started.bootstrap_servers) as client:
        entries = {entry.name: entry for entry in describe_configs(client, BROKER, "0", more=True).configs}
        assert (entries["transaction.max.timeout.ms"].value, entries["transaction.max.timeout.ms"].config_source) == (
            "5000",
            FROM_START,
        )
        enabled = entries["transaction.two.phase.commit.enable"]
        assert (enabled.value, enabled.config_source, enabled.config_type) == ("true", BY_DEFAULT, 1)
        assert (enabled.read_only, entries["log.retention.ms"].read_only) == (True, False)
        assert [(synonym.name, synonym.value) for synonym in entries["log.retention.ms"].synonyms] == [
            ("log.retention.hours", "2"),
            ("log.retention.hours", "168"),
        ]
        assert config(client, TOPIC, new_topic(client), "retention.ms") == ("7200000", FROM_START)


@pytest.mark.parametrize(
    ("kind", "name", "error"),
    [
        (TOPIC, "no-such-topic", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (TOPIC, "not legal", ErrorCode.INVALID_TOPIC_EXCEPTION),
        (BROKER, "7", ErrorCode.INVALID_REQUEST),
        (BROKER, "x", ErrorCode.INVALID_REQUEST),
        (LOGGER, "0", ErrorCode.INVALID_REQUEST),
        (CLIENT_METRICS, "m", ErrorCode.INVALID_REQUEST),
        (GROUP, "", ErrorCode.INVALID_REQUEST),
        (99, "", ErrorCode.INVALID_REQUEST),
    ],
)
def test_resources_without_settings_are_refused_with_a_reason(
    client: RawClient, kind: int, name: str, error: ErrorCode
) -> None:
    result = describe_configs(client, kind, name)
    assert (result.error_code, result.configs) == (error, [])
    assert result.error_message
    refused = change(client, kind, name, ("retention.ms", SET, "5"))
    assert refused.error == error
    if kind in (LOGGER, CLIENT_METRICS):
        assert result.error_message == refused.words


@pytest.mark.parametrize(("kind", "words"), [(LOGGER, "BROKER_LOGGER"), (CLIENT_METRICS, "CLIENT_METRICS, KIP-714")])
def test_what_has_no_settings_is_named(client: RawClient, kind: int, words: str) -> None:
    assert words in describe_configs(client, kind, "0").error_message
    assert words in change(client, kind, "0", ("root", SET, "DEBUG")).words


def test_several_resources_are_described_at_once(client: RawClient) -> None:
    names = [new_topic(client), "no-such-topic"]
    resources = [
        DescribeConfigsRequest.DescribeConfigsResource(resource_type=TOPIC, resource_name=name, configuration_keys=None)
        for name in names
    ]
    request = DescribeConfigsRequest(resources=resources, include_synonyms=False, include_documentation=False)
    results = client.ask(request, 4).results
    assert [each.resource_name for each in results] == names
    assert [bool(result.configs) for result in results] == [True, False]


# --- IncrementalAlterConfigs


@pytest.mark.parametrize("version", range(2))
def test_a_setting_is_changed_in_every_version_and_in_effect_at_once(client: RawClient, version: int) -> None:
    name = new_topic(client, segment_ms="9")
    content = batch([b"x" * 200])
    assert change(client, TOPIC, name, ("max.message.bytes", SET, "200"), version=version).error == ErrorCode.NONE
    assert produce(client, name, content).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert config(client, TOPIC, name, "segment.ms") == ("9", FROM_TOPIC)
    assert change(client, TOPIC, name, ("max.message.bytes", DELETE, None), version=version).error == ErrorCode.NONE
    assert produce(client, name, content).error_code == ErrorCode.NONE
    assert config(client, TOPIC, name, "max.message.bytes") == ("1048588", BY_DEFAULT)


def test_lists_are_appended_to_and_subtracted_from(client: RawClient) -> None:
    name = new_topic(client)
    assert change(client, TOPIC, name, ("cleanup.policy", APPEND, "compact")).error == ErrorCode.NONE
    assert config(client, TOPIC, name, "cleanup.policy") == ("delete,compact", FROM_TOPIC)
    assert change(client, TOPIC, name, ("cleanup.policy", SUBTRACT, "delete")).error == ErrorCode.NONE
    assert config(client, TOPIC, name, "cleanup.policy") == ("compact", FROM_TOPIC)


@pytest.mark.parametrize(
    ("entry", "error", "words"),
    [
        (("retention.ms", SET, "soon"), ErrorCode.INVALID_CONFIG, "Not a number of type LONG"),
        (("no.such.setting", SET, "1"), ErrorCode.INVALID_CONFIG, "Unknown topic config name: no.such.setting"),
        (("retention.ms", APPEND, "1"), ErrorCode.INVALID_CONFIG, "its type is not LIST"),
        (("retention.ms", SET, None), ErrorCode.INVALID_REQUEST, "Null value not supported for : retention.ms"),
        (("cleanup.policy", APPEND, None), ErrorCode.INVALID_REQUEST, "Null value"),
        (("retention.ms", 9, "1"), ErrorCode.INVALID_REQUEST, "Unknown operations type 9"),
    ],
)
def test_a_change_that_is_refused_changes_nothing(
    client: RawClient, entry: tuple[str, int, str | None], error: ErrorCode, words: str
) -> None:
    name = new_topic(client)
    refused = change(client, TOPIC, name, ("segment.ms", SET, "7"), entry)
    assert refused.error == error
    assert words in refused.words
    assert config(client, TOPIC, name, "segment.ms") == ("604800000", BY_DEFAULT)


def test_a_bad_setting_is_named_before_a_missing_topic(client: RawClient) -> None:
    missing = unique("missing")
    assert change(client, TOPIC, missing, ("retention.ms", SET, "soon")).error == ErrorCode.INVALID_CONFIG
    assert change(client, TOPIC, missing, ("retention.ms", SET, "5")).error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert change(client, TOPIC, "", ("retention.ms", SET, "5")).error == ErrorCode.INVALID_REQUEST
    assert change(client, TOPIC, "__consumer_offsets", ("retention.ms", SET, "5")).error == ErrorCode.INVALID_CONFIG


def test_a_setting_or_a_resource_that_occurs_twice_is_refused(client: RawClient) -> None:
    name, other = new_topic(client), new_topic(client)
    twice = change(client, TOPIC, name, ("retention.ms", SET, "5"), ("retention.ms", DELETE, None))
    assert twice == (ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    request = alter_request({(TOPIC, name): [("retention.ms", SET, "5")], (TOPIC, other): [("retention.ms", SET, "6")]})
    request.resources.append(request.resources[0])
    responses = client.ask(request, 1).responses
    assert [response.error_code for response in responses] == [ErrorCode.INVALID_REQUEST, 0, ErrorCode.INVALID_REQUEST]
    assert config(client, TOPIC, name, "retention.ms") == ("604800000", BY_DEFAULT)
    assert config(client, TOPIC, other, "retention.ms") == ("6", FROM_TOPIC)


def test_validation_alone_changes_nothing(client: RawClient) -> None:
    name = new_topic(client)
    assert change(client, TOPIC, name, ("retention.ms", SET, "5"), validate_only=True).error == ErrorCode.NONE
    assert (
        change(client, TOPIC, name, ("retention.ms", SET, "-5"), validate_only=True).error == ErrorCode.INVALID_CONFIG
    )
    assert config(client, TOPIC, name, "retention.ms") == ("604800000", BY_DEFAULT)
    for node in ("", "0"):
        refused = change(client, BROKER, node, ("log.retention.ms", SET, "5"), validate_only=True)
        assert refused.error == ErrorCode.NONE
    assert config(client, TOPIC, name, "retention.ms") == ("604800000", BY_DEFAULT)


def test_the_segments_of_a_topic_get_the_size_that_was_set(broker: EmbeddedBroker, tmp_path: Path) -> None:
    directory = tmp_path / "broker"
    with RawClient(broker.bootstrap_servers) as client:
        name = new_topic(client, 2)
        content = batch([b"x" * 600_000])
        produce(client, name, content)
        set_config(client, TOPIC, name, segment_bytes=str(1 << 20))
        for partition in (0, 0, 1, 1):
            produce(client, name, content, partition=partition)
    assert [len(list((directory / f"{name}-{index}").glob("*.log"))) for index in (0, 1)] == [3, 2]


# --- AlterConfigs


@pytest.mark.parametrize("version", range(3))
def test_all_settings_are_replaced_in_every_version(client: RawClient, version: int) -> None:
    name = new_topic(client, retention_ms="5")
    assert replace_configs(client, TOPIC, name, {"segment.ms": "7"}, version).error == ErrorCode.NONE
    assert config(client, TOPIC, name, "segment.ms") == ("7", FROM_TOPIC)
    assert config(client, TOPIC, name, "retention.ms") == ("604800000", BY_DEFAULT)
    assert replace_configs(client, TOPIC, name, {"segment.ms": None}, version).error == ErrorCode.INVALID_REQUEST
    assert replace_configs(client, TOPIC, name, {"segment.ms": "-7"}, version).error == ErrorCode.INVALID_CONFIG
    assert config(client, TOPIC, name, "segment.ms") == ("7", FROM_TOPIC)


# --- the broker's


def test_a_dynamic_broker_setting_is_the_topics_default_at_once(started: EmbeddedBroker) -> None:
    with started, RawClient(started.bootstrap_servers) as client:
        name, own = new_topic(client), new_topic(client, retention_ms="9")
        set_config(client, BROKER, "", log_retention_ms="5", message_max_bytes="200")
        assert config(client, TOPIC, name, "retention.ms") == ("5", FROM_EVERY_NODE)
        assert produce(client, name, batch([b"x" * 200])).error_code == ErrorCode.MESSAGE_TOO_LARGE
        set_config(client, BROKER, "0", log_retention_ms="6")
        assert config(client, TOPIC, name, "retention.ms") == ("6", FROM_NODE)
        assert config(client, TOPIC, own, "retention.ms") == ("9", FROM_TOPIC)
        entries = describe_configs(client, BROKER, "").configs
        assert {entry.name: entry.value for entry in entries} == {"log.retention.ms": "5", "message.max.bytes": "200"}
        assert {entry.config_source for entry in entries} == {FROM_EVERY_NODE}
        for node in ("0", ""):
            change(client, BROKER, node, ("log.retention.ms", DELETE, None))
        assert config(client, TOPIC, name, "retention.ms") == ("7200000", FROM_START)


def test_an_empty_cleanup_policy_of_the_broker_is_described_for_its_topics_too(tmp_path: Path) -> None:
    given = {"log.cleanup.policy": "compact", "num.partitions": "+1"}
    with ForkedBroker(tmp_path, config=given) as broker, RawClient(broker.bootstrap_servers) as client:
        name = new_topic(client)
        set_config(client, BROKER, "0", log_cleanup_policy="")
        assert config(client, BROKER, "0", "log.cleanup.policy") == ("", FROM_NODE)
        assert config(client, TOPIC, name, "cleanup.policy") == ("", FROM_NODE)
        change(client, BROKER, "0", ("log.cleanup.policy", DELETE, None))
        assert config(client, TOPIC, name, "cleanup.policy") == ("compact", FROM_START)
        assert config(client, BROKER, "0", "num.partitions") == ("1", FROM_START), "as Kafka writes a number"


REFUSED: Mapping[str, tuple[str, str]] = {
    "not while it runs": ("num.partitions", "3"),
    "the coarser unit": ("log.retention.hours", "3"),
    "unknown": ("no.such.setting", "3"),
    "out of range": ("log.retention.ms", "-2"),
    "out of the broker's range": ("log.retention.ms", "0"),
    "not on one node": ("min.insync.replicas", "2"),
}


@pytest.mark.parametrize(("key", "value"), REFUSED.values(), ids=REFUSED.keys())
def test_settings_that_need_a_restart_are_refused_with_a_reason(client: RawClient, key: str, value: str) -> None:
    for node in ("", "0"):
        refused = change(client, BROKER, node, (key, SET, value))
        assert refused.error == ErrorCode.INVALID_REQUEST
        assert key in refused.words


def test_changed_settings_survive_a_kill(broker: EmbeddedBroker) -> None:
    with RawClient(broker.bootstrap_servers) as client:
        name = new_topic(client, segment_ms="8")
        set_config(client, TOPIC, name, retention_ms="5")
        set_config(client, BROKER, "", log_retention_bytes="6")
    broker.kill()
    broker.start()
    with RawClient(broker.bootstrap_servers) as client:
        for key, value, source in (
            ("retention.ms", "5", FROM_TOPIC),
            ("segment.ms", "8", FROM_TOPIC),
            ("retention.bytes", "6", FROM_EVERY_NODE),
        ):
            assert config(client, TOPIC, name, key) == (value, source)


# --- ListConfigResources


def test_the_resources_with_settings_are_listed(client: RawClient) -> None:
    name = new_topic(client)
    listed = client.ask(ListConfigResourcesRequest(resource_types=[]), 1).config_resources
    found = {(entry.resource_type, entry.resource_name) for entry in listed}
    assert {(TOPIC, name), (TOPIC, "__consumer_offsets"), (BROKER, "0"), (LOGGER, "0")} <= found
    (node,) = client.ask(ListConfigResourcesRequest(resource_types=[BROKER, GROUP]), 1).config_resources
    assert (node.resource_type, node.resource_name) == (BROKER, "0")


def test_there_are_no_client_metrics_to_list(client: RawClient) -> None:
    for request, version in (
        (ListConfigResourcesRequest(), 0),
        (ListConfigResourcesRequest(resource_types=[CLIENT_METRICS]), 1),
    ):
        answer = client.ask(request, version)
        assert (answer.error_code, answer.config_resources) == (ErrorCode.NONE, [])


def test_an_unknown_type_of_resource_is_not_supported(client: RawClient) -> None:
    answer = client.ask(ListConfigResourcesRequest(resource_types=[TOPIC, 99]), 1)
    assert (answer.error_code, answer.config_resources) == (ErrorCode.UNSUPPORTED_VERSION, [])
