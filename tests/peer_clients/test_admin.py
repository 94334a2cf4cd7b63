"""Administration by every client: topics, their settings and their records."""

from collections.abc import Callable

import pytest

from tests.support.peer_clients import client as ability
from tests.support.peer_clients.client import Administrator, Receiver, RefusedError, Sender
from tests.support.peer_clients.reading import read_to_end, values
from tests.support.requests.calls import unique
from tests.support.waiting import eventually

Producer = Callable[..., Sender]
Consumer = Callable[..., Receiver]


def written(producer: Producer, topic: str, count: int) -> None:
    """Write ``count`` records."""
    sender = producer()
    for number in range(count):
        sender.send(topic, b"%d" % number)
    sender.flush()


# --- topics


def test_a_topic_is_created_once_and_deleted_once(admin: Administrator, producer: Producer) -> None:
    name = unique("topic")
    admin.create_topic(name, 3)
    assert name in admin.topics()
    assert admin.partitions(name) == 3
    with pytest.raises(RefusedError, match="TOPIC_ALREADY_EXISTS"):
        admin.create_topic(name)
    written(producer, name, 3)
    admin.delete_topic(name)
    assert name not in eventually(admin.topics, lambda names: name not in names)
    with pytest.raises(RefusedError, match="UNKNOWN_TOPIC_OR_PART"):
        admin.delete_topic(name)


def test_a_topic_of_the_same_name_begins_empty(admin: Administrator, producer: Producer, consumer: Consumer) -> None:
    name = unique("topic")
    admin.create_topic(name)
    written(producer, name, 5)
    admin.delete_topic(name)
    eventually(admin.topics, lambda names: name not in names)
    admin.create_topic(name)
    assert consumer().watermarks((name, 0)) == (0, 0)
    written(producer, name, 2)
    assert values(read_to_end(consumer(), (name, 0))) == [b"0", b"1"]


@pytest.mark.parametrize(
    ("name", "partitions", "configs", "error"),
    [
        ("no/such:name", 1, {}, "TOPIC_EXCEPTION|INVALID_TOPIC"),
        ("topic-ok", 0, {}, "INVALID_PARTITIONS"),
        ("topic-ok", 1, {"no.such.setting": "1"}, "INVALID_CONFIG"),
        ("topic-ok", 1, {"retention.ms": "soon"}, "INVALID_CONFIG"),
    ],
)
def test_a_topic_that_cannot_be_is_refused_by_name(
    admin: Administrator, name: str, partitions: int, configs: dict[str, str], error: str
) -> None:
    with pytest.raises(RefusedError, match=error):
        admin.create_topic(name, partitions, configs)


@pytest.mark.needs(ability.VALIDATION)
def test_validation_creates_nothing(admin: Administrator) -> None:
    name = unique("topic")
    admin.create_topic(name, validate_only=True)
    assert name not in admin.topics()


def test_a_topic_gets_more_partitions_and_never_fewer(
    admin: Administrator, producer: Producer, consumer: Consumer
) -> None:
    name = unique("topic")
    admin.create_topic(name, 2)
    admin.create_partitions(name, 4)
    assert eventually(lambda: admin.partitions(name), lambda count: count == 4) == 4
    sender = producer()
    sender.send(name, b"v", partition=3)
    assert sender.flush() == [(3, 0)]
    assert values(read_to_end(consumer(), (name, 3))) == [b"v"]
    with pytest.raises(RefusedError, match="INVALID_PARTITIONS"):
        admin.create_partitions(name, 3)


# --- settings


def test_settings_of_a_topic_are_described_and_changed(admin: Administrator) -> None:
    name = unique("topic")
    admin.create_topic(name, configs={"retention.ms": "86400000"})
    described = admin.topic_config(name)
    assert described["retention.ms"] == "86400000"
    assert described["cleanup.policy"] == "delete"
    assert described["max.message.bytes"] == "8000000"  # the broker's message.max.bytes
    admin.alter_topic_config(name, {"cleanup.policy": "compact", "retention.ms": "3600000"})
    after = admin.topic_config(name)
    assert (after["cleanup.policy"], after["retention.ms"]) == ("compact", "3600000")
    with pytest.raises(RefusedError, match=r"(?i)invalid_?config"):
        admin.alter_topic_config(name, {"cleanup.policy": "burn"})
    assert admin.topic_config(name)["cleanup.policy"] == "compact"


def test_a_changed_setting_is_honoured(admin: Administrator, producer: Producer) -> None:
    name = unique("topic")
    admin.create_topic(name)
    admin.alter_topic_config(name, {"max.message.bytes": "1000"})
    sender = producer()
    sender.send(name, b"x" * 3000)
    with pytest.raises(RefusedError, match=r"TOO_LARGE"):
        sender.flush()


def test_settings_of_the_broker_are_described(admin: Administrator) -> None:
    described = admin.broker_config()
    assert described["message.max.bytes"] == "8000000"
    assert described["transaction.max.timeout.ms"] == "900000"


# --- records


def test_records_before_an_offset_are_deleted(
    topic: str, admin: Administrator, producer: Producer, consumer: Consumer
) -> None:
    written(producer, topic, 10)
    assert admin.delete_records((topic, 0), 4) == 4
    assert consumer().watermarks((topic, 0)) == (4, 10)
    assert values(read_to_end(consumer(), (topic, 0))) == [b"%d" % number for number in range(4, 10)]
    with pytest.raises(RefusedError, match=r"OFFSET_OUT_OF_RANGE"):
        admin.delete_records((topic, 0), 11)


@pytest.mark.needs(ability.ADMIN_OFFSETS)
def test_an_administrator_learns_the_end_of_a_partition(topic: str, admin: Administrator, producer: Producer) -> None:
    written(producer, topic, 3)
    assert admin.latest_offset((topic, 0)) == 3
