"""Settings of the broker that clients change while it runs: in effect at once, described, kept, and refused."""

import time
from pathlib import Path

import pytest

from dualwrite.broker.core.topic_changes import ConfigOperation
from dualwrite.broker.settings.dynamic_settings import DYNAMIC_OWN, DYNAMIC_SETTINGS
from dualwrite.records.batch import Record, build_batch
from dualwrite.wire.error_codes import ErrorCode
from tests.support.forked import ForkedBroker
from tests.support.requests.admin_calls import BROKER, change, config, describe_configs, set_config
from tests.support.requests.calls import (
    add,
    batch,
    end,
    new_producer,
    new_topic,
    produce,
    producers,
    tx_batch,
    unique,
)
from tests.support.requests.raw_client import RawClient
from tests.support.waiting import eventually

SET, DELETE = ConfigOperation.SET, ConfigOperation.DELETE
FROM_NODE, FROM_EVERY_NODE = 2, 3
NEVER_MS = "3600000"


def test_only_settings_that_can_be_changed_are_not_read_only(client: RawClient) -> None:
    entries = describe_configs(client, BROKER, "0").configs
    assert {entry.name for entry in entries if not entry.read_only} == DYNAMIC_SETTINGS


@pytest.mark.parametrize("node", ["", "0"])
@pytest.mark.parametrize("name", sorted(DYNAMIC_OWN))
def test_each_is_changed_and_taken_back(client: RawClient, name: str, node: str) -> None:
    before = config(client, BROKER, "0", name)
    value = "false" if before[0] == "true" else "5000"
    assert change(client, BROKER, node, (name, SET, value)).error == ErrorCode.NONE
    assert config(client, BROKER, "0", name) == (value, FROM_NODE if node else FROM_EVERY_NODE)
    assert change(client, BROKER, node, (name, DELETE, None)).error == ErrorCode.NONE
    assert config(client, BROKER, "0", name) == before


@pytest.mark.parametrize(
    ("name", "value"), [("log.cleaner.backoff.ms", "0"), ("max.connections", "few"), ("producer.id.expiration.ms", "0")]
)
def test_a_value_that_is_not_allowed_is_refused_by_name(client: RawClient, name: str, value: str) -> None:
    refused = change(client, BROKER, "", (name, SET, value))
    assert refused.error == ErrorCode.INVALID_REQUEST
    assert name in refused.words


def test_a_setting_is_not_taken_back_from_under_another_that_needs_it(tmp_path: Path) -> None:
    least, most = "log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"
    with ForkedBroker(tmp_path, config={most: "1000"}) as broker, RawClient(broker.bootstrap_servers) as client:
        assert change(client, BROKER, "0", (most, SET, "10000")).error == ErrorCode.NONE
        assert change(client, BROKER, "", (least, SET, "5000")).error == ErrorCode.NONE
        refused = change(client, BROKER, "0", (most, DELETE, None))
        assert refused.error == ErrorCode.INVALID_REQUEST
        assert "min.compaction.lag.ms (5000) > max.compaction.lag.ms (1000)" in refused.words
        assert config(client, BROKER, "0", most) == ("10000", FROM_NODE)
        new_topic(client)  # which contradictory defaults would make impossible


def test_the_defaults_of_every_node_may_differ_from_those_of_the_node(client: RawClient) -> None:
    least, most = "log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"
    assert change(client, BROKER, "0", (least, SET, "10"), (most, SET, "20")).error == ErrorCode.NONE
    assert change(client, BROKER, "", (most, SET, "5")).error == ErrorCode.NONE, "the node's own value is in effect"
    assert config(client, BROKER, "0", most) == ("20", FROM_NODE)
    for node, names in (("", [most]), ("0", [least, most])):
        assert change(client, BROKER, node, *((name, DELETE, None) for name in names)).error == ErrorCode.NONE


# --- in effect at once


def size(directory: Path) -> int:
    """The bytes in the log files of one partition."""
    return sum(path.stat().st_size for path in directory.glob("*.log"))


def test_a_shorter_backoff_wakes_the_cleaner(tmp_path: Path) -> None:
    given = {"log.cleaner.backoff.ms": NEVER_MS}
    with ForkedBroker(tmp_path, config=given) as broker, RawClient(broker.bootstrap_servers) as client:
        topic = new_topic(client, cleanup_policy="compact", segment_bytes="1048576", min_cleanable_dirty_ratio="0.01")
        same_key = build_batch([Record(b"k", b"x" * 500_000, 1000)])
        for _ in range(5):
            produce(client, topic, same_key)
        written = size(tmp_path / f"{topic}-0")
        set_config(client, BROKER, "", log_cleaner_backoff_ms="20")
        assert eventually(lambda: size(tmp_path / f"{topic}-0"), lambda left: left < written) < written


def test_a_lower_limit_of_connections_counts_for_the_next_one(tmp_path: Path) -> None:
    with ForkedBroker(tmp_path) as broker, RawClient(broker.bootstrap_servers) as client:
        set_config(client, BROKER, "0", max_connections_per_ip="1")
        with pytest.raises((ConnectionError, EOFError)), RawClient(broker.bootstrap_servers) as second:
            new_topic(second)
        set_config(client, BROKER, "0", max_connections_per_ip="2")
        with RawClient(broker.bootstrap_servers) as second:
            new_topic(second)


def test_producers_are_forgotten_by_the_changed_time(tmp_path: Path) -> None:
    given = {"producer.id.expiration.check.interval.ms": "20"}
    with ForkedBroker(tmp_path, config=given) as broker, RawClient(broker.bootstrap_servers) as client:
        topic = new_topic(client)
        producer = new_producer(client)
        now_ms = int(time.time() * 1000)
        assert produce(client, topic, batch([b"v"], producer, 0, now_ms)).error_code == ErrorCode.NONE
        assert list(producers(client, topic)) == [producer.producer_id]
        set_config(client, BROKER, "", producer_id_expiration_ms="1")
        assert eventually(lambda: producers(client, topic), lambda known: not known) == {}


def late_record(client: RawClient) -> int:
    """The error code of a record that comes after the end of its transaction, in the older protocol."""
    topic, name = new_topic(client), unique("tx")
    producer = new_producer(client, name)
    add(client, name, producer, (topic, 0))
    produce(client, topic, tx_batch([b"in time"], producer), name)
    end(client, name, producer, version=1)
    return produce(client, topic, tx_batch([b"late"], producer, sequence=1), name).error_code


def test_the_verification_of_partitions_is_switched_off_and_on(tmp_path: Path) -> None:
    with ForkedBroker(tmp_path) as broker:
        with RawClient(broker.bootstrap_servers) as client:
            assert late_record(client) == ErrorCode.INVALID_TXN_STATE
            set_config(client, BROKER, "", transaction_partition_verification_enable="false")
            assert late_record(client) == ErrorCode.NONE
        broker.kill()
        broker.start()
        with RawClient(broker.bootstrap_servers) as client:
            assert late_record(client) == ErrorCode.NONE, "the changed setting applies after a restart, too"
            change(client, BROKER, "", ("transaction.partition.verification.enable", DELETE, None))
            assert late_record(client) == ErrorCode.INVALID_TXN_STATE
