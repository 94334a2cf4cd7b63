"""What the flights' pipeline is given: real rows, and aborted ones between them."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dualwrite.testing.kafka import KafkaBroker
from tests.spark.flights import source

ROWS = 3 * source.COMMITTED + 1


def test_flights_are_as_the_package_has_them(tmp_path: Path) -> None:
    first, *_, last = source.flights(tmp_path, 900)
    assert (first["flight_id"], first["carrier"], first["origin"], first["dep_delay"]) == ("1", "UA", "EWR", 2)
    assert first["time_hour"] == "2013-01-01T10:00:00Z"
    assert last["flight_id"] == "900"
    cancelled = [row for row in source.flights(tmp_path, 900) if row["dep_delay"] is None]
    assert [row["flight_id"] for row in cancelled[:2]] == ["839", "840"]
    assert len(source.airlines()) == 16
    assert {"faa": "JFK", "name": "John F Kennedy Intl"}.items() <= airport("JFK").items()


def airport(faa: str) -> source.Row:
    return next(row for row in source.airports() if row["faa"] == faa)


@pytest.fixture
def broker(tmp_path: Path, kafka_broker_factory: Callable[[], KafkaBroker]) -> KafkaBroker:
    broker = kafka_broker_factory()
    source.fill(broker, source.flights(tmp_path, ROWS))
    return broker


@pytest.mark.slow
def test_the_topics_have_what_was_committed_and_what_was_aborted(tmp_path: Path, broker: KafkaBroker) -> None:
    flights = source.flights(tmp_path, ROWS)
    committed = [json.loads(record.value or b"") for record in broker.read("flights")]
    assert sorted(committed, key=lambda row: int(row["flight_id"])) == flights
    everything = broker.read("flights", isolation_level="read_uncommitted")
    aborted = len(everything) - len(committed)
    assert aborted == 3 * source.ABORTED + 1, "of each batch, or as many as it has"
    delays = [json.loads(record.value or b"")["dep_delay"] for record in everything]
    assert delays.count(10_000) == aborted, "who counts them, sees it"
    assert {record.partition for record in broker.read("flights")} == set(range(source.PARTITIONS))


@pytest.mark.slow
@pytest.mark.parametrize(("topic", "key"), [("airlines", "carrier"), ("airports", "faa")])
def test_names_are_there_once_but_for_the_aborted(broker: KafkaBroker, topic: str, key: str) -> None:
    rows = [json.loads(record.value or b"") for record in broker.read(topic)]
    assert rows == getattr(source, topic)()
    assert len({row[key] for row in rows}) == len(rows)
    aborted = broker.read(topic, isolation_level="read_uncommitted")[len(rows) :]
    assert {json.loads(record.value or b"")["name"] for record in aborted} == {"nobody"}
    assert len(aborted) == len(rows)
