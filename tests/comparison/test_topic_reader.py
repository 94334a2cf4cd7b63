"""The reader of a topic: up to the end that the topic has now, and on from there."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import Consumer, Message
from confluent_kafka.admin import AdminClient

from dualwrite.comparison import topic as topic_module
from dualwrite.comparison.topic import TopicReader, read_topic
from dualwrite.errors import ConfigurationError, InputError, KafkaUnavailableError
from dualwrite.testing.kafka import KafkaBroker
from tests.support.comparison.comparison_site import ComparisonSite, pairs
from tests.support.peer_clients.kafka_helpers import PATIENCE


@pytest.fixture
def reader(site: ComparisonSite) -> Iterator[TopicReader]:
    made = TopicReader(site.broker.client_config, site.topic)
    yield made
    made.close()


def keys(reader: TopicReader) -> list[str]:
    """The keys that the reader reads now, each with its partition."""
    messages: list[Message] = [message for batch in reader.read_on() for message in batch]
    return [f"{message.partition()}:{(message.key() or b'-').decode()}" for message in messages]


def test_each_call_reads_what_has_come_since(site: ComparisonSite, reader: TopicReader) -> None:
    assert keys(reader) == []
    site.produce(*pairs(range(3)))
    assert keys(reader) == ["0:0", "0:1", "0:2"]
    assert keys(reader) == []
    site.produce(*pairs([3]), partition=1)
    site.produce(*pairs([4]))
    assert sorted(keys(reader)) == ["0:4", "1:3"]
    assert reader.positions == {0: 6, 1: 2}, "past the markers"


def test_it_stops_at_the_last_stable_offset(site: ComparisonSite, reader: TopicReader) -> None:
    site.produce(*pairs([1]))
    in_flight = site.open_transaction(*pairs([2]))
    site.produce(*pairs([3]))
    assert keys(reader) == ["0:1"]
    tail = TopicReader(site.broker.client_config, site.topic, committed=False)
    tail.positions = dict(reader.positions)
    assert keys(tail) == ["0:2", "0:3"]
    tail.close()
    in_flight.abort_transaction()
    assert keys(reader) == ["0:3"]


def test_its_end_is_the_last_stable_offset_or_the_high_watermark(site: ComparisonSite, reader: TopicReader) -> None:
    site.produce(*pairs([1]))
    site.open_transaction(*pairs([2]))
    site.produce(*pairs([3]))
    tail = TopicReader(site.broker.client_config, site.topic, committed=False)
    assert (reader.ends(), tail.ends()) == ({0: 2, 1: 0}, {0: 5, 1: 0})
    tail.close()


def test_records_after_the_end_are_left_to_the_next_call(site: ComparisonSite, reader: TopicReader) -> None:
    site.produce(*pairs(range(10)))
    batches = reader.read_on()
    first = next(batches)
    site.produce(*pairs(range(10, 20)))
    assert len(first) + sum(len(batch) for batch in batches) == 10
    assert keys(reader) == [f"0:{number}" for number in range(10, 20)]


def test_records_that_are_deleted_meanwhile_are_passed_over(site: ComparisonSite, reader: TopicReader) -> None:
    site.produce(*pairs(range(3)))
    assert len(keys(reader)) == 3
    site.produce(*pairs(range(3, 8)))
    site.delete_records(before=6)
    assert keys(reader) == ["0:5", "0:6", "0:7"]
    assert reader.first_offsets == {0: 6, 1: 0}


def test_a_topic_that_has_lost_its_end_is_not_read_again(site: ComparisonSite, reader: TopicReader) -> None:
    """As after an unclean election of a leader."""
    site.produce(*pairs(range(3)))
    reader.positions = {0: 7}
    assert keys(reader) == []
    assert keys(reader) == []
    assert (reader.positions[0], reader.ends()[0]) == (7, 7)


class SilentConsumer(Consumer):
    """Its broker answers everything but the requests for records."""

    def poll(self, *_: Any, **__: Any) -> None:
        return None


def test_a_broker_that_gives_no_record_is_not_taken_for_the_end(
    site: ComparisonSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.produce(*pairs([1]))
    monkeypatch.setattr(topic_module, "Consumer", SilentConsumer)
    with (
        closing(TopicReader(site.broker.client_config, site.topic)) as reader,
        pytest.raises(KafkaUnavailableError, match="no record for 30 seconds"),
    ):
        keys(reader)


def test_a_topic_of_markers_alone_ends(site: ComparisonSite, reader: TopicReader) -> None:
    site.open_transaction(*pairs([1])).abort_transaction()
    assert keys(reader) == []
    assert reader.positions == {0: 2, 1: 0}


def test_a_topic_that_is_deleted_meanwhile_is_named(site: ComparisonSite, reader: TopicReader) -> None:
    site.produce(*pairs([1]))
    assert keys(reader) == ["0:1"]
    admin = AdminClient(site.broker.client_config)
    (deleted,) = admin.delete_topics([site.topic]).values()
    deleted.result(PATIENCE)
    with pytest.raises(InputError, match=f"the cluster has no topic '{site.topic}'"):
        keys(reader)


def test_a_setting_that_librdkafka_refuses_is_named(broker: KafkaBroker) -> None:
    with pytest.raises(ConfigurationError, match=r"session\.timeout\.ms"):
        TopicReader({**broker.client_config, "session.timeout.ms": "soon"}, "topic")


@pytest.mark.parametrize(("level", "values"), [("read_committed", [b"{}"]), ("read_uncommitted", [b"{}", b"x"])])
def test_read_topic_reads_as_its_isolation_level_says(site: ComparisonSite, level: str, values: list[bytes]) -> None:
    site.produce(("1", "{}"))
    site.open_transaction((None, "x")).abort_transaction()
    records = list(read_topic(site.broker.bootstrap_servers, site.topic, level))
    assert [value for _, value in records] == values
    assert records[0][0] == b"1"
