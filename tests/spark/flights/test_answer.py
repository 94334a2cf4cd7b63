"""The judge of the flights pipeline: the result that it expects, and that it notices every error."""

import json
from collections.abc import Iterable
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from dualwrite.testing.kafka import ConsumedRecord
from tests.spark.flights.answer import Delays, Findings, batches, compare_table, compare_topic
from tests.spark.flights.source import Row

AIRLINES = [{"carrier": "UA", "name": "United"}, {"carrier": "B6", "name": "JetBlue"}]
AIRPORTS = [{"faa": "EWR", "name": "Newark"}, {"faa": "JFK", "name": "Kennedy"}]


def flight(carrier: str = "UA", origin: str = "EWR", delay: int | None = 0, hour: str = "2013-01-01T23:00:00Z") -> Row:
    return {"carrier": carrier, "origin": origin, "dep_delay": delay, "time_hour": hour}


FLIGHTS = [
    flight(delay=14),
    flight(delay=15),
    flight(delay=None),
    flight(delay=-3),
    flight(hour="2013-01-02T00:00:00Z"),
    flight("B6", "JFK", None),
]


def delays() -> Delays:
    return Delays(AIRLINES, AIRPORTS)


def rows_of(flights: Iterable[Row]) -> dict[str, dict[str, Any]]:
    made = delays()
    for each in flights:
        made.add(each)
    return made.rows


def in_table(rows: dict[str, dict[str, Any]]) -> list[Row]:
    """As the database gives them."""
    return [{**row, "day": date.fromisoformat(row["day"])} for row in rows.values()]


def record(key: str, value: Row, offset: int = 0) -> ConsumedRecord:
    return ConsumedRecord("delays", 0, offset, 0, key.encode(), json.dumps(value).encode(), ())


def test_flights_are_counted_by_day_carrier_and_airport() -> None:
    rows = rows_of(FLIGHTS)
    assert rows["2013-01-01/UA/EWR"] == {
        "day": "2013-01-01", "carrier": "UA", "origin": "EWR", "airline": "United", "airport": "Newark",
        "flights": 4, "cancelled": 1, "late": 1, "minutes": 26,
    }  # fmt: skip
    assert rows["2013-01-02/UA/EWR"]["flights"] == 1, "a window ends where the next one begins"
    alone = rows["2013-01-01/B6/JFK"]
    assert (alone["flights"], alone["cancelled"], alone["minutes"]) == (1, 1, 0), "no sum is 0, not NULL"
    assert len(rows) == 3


def test_a_batch_brings_each_row_that_it_changes_once() -> None:
    made = delays()
    first = dict(made.batch(FLIGHTS[:3]))
    assert {key: value["flights"] for key, value in first.items()} == {"2013-01-01/UA/EWR": 3}
    second = dict(made.batch(FLIGHTS[3:]))
    assert {key: value["flights"] for key, value in second.items()} == {
        "2013-01-01/UA/EWR": 4, "2013-01-02/UA/EWR": 1, "2013-01-01/B6/JFK": 1,
    }  # fmt: skip
    assert first["2013-01-01/UA/EWR"]["flights"] == 3, "what a batch has brought does not change any more"


def test_nothing_is_wrong_with_the_right_table() -> None:
    rows = rows_of(FLIGHTS)
    assert compare_table(rows, in_table(rows)) == Findings(rows=3)


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda table: table[1:], "row missing"),
        (lambda table: [*table, {**table[0], "day": date(2013, 7, 1)}], "row of no flight"),
        (lambda table: [{**table[0], "minutes": 25}, *table[1:]], "row with another value"),
        (lambda table: [{**table[0], "airline": "nobody"}, *table[1:]], "row with another value"),
        (lambda table: [{**table[0], "late": None}, *table[1:]], "row with another value"),
    ],
)
def test_each_thing_that_may_be_wrong_with_the_table_is_found(change: Any, kind: str) -> None:
    rows = rows_of(FLIGHTS)
    found = compare_table(rows, change(in_table(rows)))
    assert found.wrong == {kind: 1}
    assert found.examples[0].startswith(kind)


@pytest.fixture
def expected() -> list[tuple[str, Row]]:
    made = delays()
    return [*made.batch(FLIGHTS[:3]), *made.batch(FLIGHTS[3:4])]


def test_nothing_is_wrong_with_the_right_topic(expected: list[tuple[str, Row]]) -> None:
    assert compare_topic(expected, [record(*each) for each in expected]) == Findings(records=2)


@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        (lambda records: records[:1], {"record missing": 1}),
        (lambda records: records[1:], {"record missing": 1}),
        (lambda records: [*records, records[1]], {"record twice": 1}),
        (lambda records: records[::-1], {"record behind a newer one": 1}),
        (lambda records: [*records, record("2013-01-01/UA/EWR", {"flights": 9})], {"record of no batch": 1}),
        (lambda records: [*records, ConsumedRecord("delays", 0, 9, 0, None, None, ())], {"record of no batch": 1}),
        (
            lambda records: [records[0], record("2013-01-01/UA/EWR", {**json.loads(records[1].value), "late": 7})],
            {"record with another value": 1},
        ),
    ],
)
def test_each_thing_that_may_be_wrong_with_the_topic_is_found(
    expected: list[tuple[str, Row]], change: Any, kinds: dict[str, int]
) -> None:
    assert compare_topic(expected, change([record(*each) for each in expected])).wrong == kinds


def test_no_more_than_a_few_examples_are_kept(expected: list[tuple[str, Row]]) -> None:
    found = compare_topic(expected, [record(*expected[0])] * 50)
    assert found.wrong["record twice"] == 49
    assert len(found.examples) == 5


def test_batches_are_what_spark_has_noted(tmp_path: Path) -> None:
    notes = tmp_path / "offsets"
    notes.mkdir()
    # Aborted records and markers take offsets, too; the tenth batch is not between the first and the second.
    for batch, ends in enumerate([{"0": 2, "1": 0}, {"0": 2, "1": 4}, *[{"0": 5, "1": 4}] * 8, {"0": 9, "1": 5}]):
        (notes / str(batch)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{json.dumps({"flights": ends})}')
        (notes / f".{batch}.crc").touch()
    places = [(0, 0), (0, 1), (1, 1), (1, 3), (0, 4), (0, 8), (1, 4), (0, 9)]
    flights = [ConsumedRecord("flights", part, at, 0, b"", json.dumps([part, at]).encode(), ()) for part, at in places]
    found = [[tuple(each) for each in batch] for batch in batches(tmp_path, flights)]
    assert found[:3] == [[(0, 0), (0, 1)], [(1, 1), (1, 3)], [(0, 4)]]
    assert found[3:-1] == [[]] * 7
    assert found[-1] == [(0, 8), (1, 4)], "what no batch has read is in none"
