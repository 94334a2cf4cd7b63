"""The settings of transactions and producers: today's names, Kafka's defaults, and what a single node cannot be."""

from pathlib import Path

import pytest

from dualwrite.broker.config import BrokerOptions
from dualwrite.broker.settings.broker_settings import SETTINGS
from dualwrite.errors import ConfigurationError
from tests.support.forked import ForkedBroker
from tests.support.requests.calls import (
    describe,
    end,
    identity,
    new_producer,
    new_topic,
    open_transaction,
    read_all,
    unique,
)
from tests.support.requests.raw_client import RawClient

KAFKAS = {
    "producer.id.expiration.check.interval.ms": "600000",
    "producer.id.expiration.ms": "86400000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "10000",
    "transaction.max.timeout.ms": "900000",
    "transaction.partition.verification.enable": "true",
    "transaction.remove.expired.transaction.cleanup.interval.ms": "3600000",
    "transactional.id.expiration.ms": "604800000",
}
"""What Apache Kafka 4.4 has without configuration."""
OF_ONE_NODE = (
    "transaction.state.log.min.isr",
    "transaction.state.log.num.partitions",
    "transaction.state.log.replication.factor",
)


@pytest.mark.parametrize(("name", "default"), KAFKAS.items())
def test_defaults_are_kafkas(name: str, default: str) -> None:
    assert SETTINGS[name].default == default


def test_two_phase_commit_is_on_by_default(tmp_path: Path) -> None:
    """In KIP-939 and in Apache Kafka it is off; docs/decisions/0004 says why it is on here."""
    assert SETTINGS["transaction.two.phase.commit.enable"].default == "true"
    assert BrokerOptions(tmp_path).transactions.two_phase_commit_enable
    off = BrokerOptions(tmp_path, config={"transaction.two.phase.commit.enable": "false"})
    assert not off.transactions.two_phase_commit_enable


def test_the_rules_have_the_same_defaults_as_the_settings(tmp_path: Path) -> None:
    """Rules that are made without options, as tests do, are those of a broker without options."""
    options = BrokerOptions(tmp_path)
    assert options.transactions == type(options.transactions)()


def test_the_transaction_log_has_smaller_segments_than_kafkas_for_a_start_reads_all_of_it() -> None:
    assert SETTINGS["transaction.state.log.segment.bytes"].default == str(4 * 1024 * 1024)


@pytest.mark.parametrize("name", OF_ONE_NODE)
def test_only_values_that_are_true_on_one_node_are_accepted(tmp_path: Path, name: str) -> None:
    assert SETTINGS[name].default == "1"
    BrokerOptions(tmp_path, config={name: "1"})
    with pytest.raises(ConfigurationError, match=f"broker setting {name}=3: "):
        BrokerOptions(tmp_path, config={name: "3"})


@pytest.mark.parametrize("name", [name for name in KAFKAS if name.endswith(".ms")])
@pytest.mark.parametrize(
    ("value", "why"),
    [("0", "Value must be at least 1"), ("-1", "Value must be at least 1"), ("soon", "Not a number of type INT")],
)
def test_an_invalid_time_is_refused_with_the_allowed_values(tmp_path: Path, name: str, value: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=f"broker setting {name}={value}: {why}"):
        BrokerOptions(tmp_path, config={name: value})


def test_the_transaction_log_has_segments_of_the_size_that_was_asked_for(tmp_path: Path) -> None:
    config = {"transaction.state.log.segment.bytes": "1024"}
    with ForkedBroker(tmp_path, config=config) as broker:
        with RawClient(broker.bootstrap_servers) as client:
            topic, transactional_id = new_topic(client), unique("tx")
            producer = new_producer(client, transactional_id)
            for number in range(10):
                open_transaction(client, transactional_id, producer, {(topic, 0): [b"%d" % number]})
                producer = identity(end(client, transactional_id, producer))
            assert len(list((tmp_path / "__transaction_state-0").glob("*.log"))) > 2
        broker.kill()
        broker.start()
        with RawClient(broker.bootstrap_servers) as client:
            assert describe(client, transactional_id).producer_epoch == producer.epoch
            assert read_all(client, topic) == [b"%d" % number for number in range(10)]
