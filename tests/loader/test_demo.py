"""The demo: its plan of kills, its independent comparison, and a whole run."""

import json
import random
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Producer

from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.cli.main import main
from dualwrite.demo.check import Comparison, compare
from dualwrite.demo.supervisor import Death, Kill, Window, plan
from tests.support.servers.databases import SERVERS

KEY = "id"
ROWS = [(1, "tea"), (2, "coffee"), (3, None)]


@pytest.fixture(scope="module")
def bootstrap_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with EmbeddedBroker(tmp_path_factory.mktemp("broker")) as broker:
        yield broker.bootstrap_servers


def write_table(path: Path, rows: Sequence[tuple[int, str | None]]) -> Path:
    connection = sqlite3.connect(path)
    connection.execute(f"CREATE TABLE orders ({KEY} INTEGER PRIMARY KEY, item TEXT)")
    connection.executemany("INSERT INTO orders VALUES (?, ?)", rows)
    connection.commit()
    connection.close()
    return path


def write_topic(
    bootstrap_servers: str, topic: str, rows: Sequence[tuple[int, str | None]], aborted: bool = False
) -> None:
    producer = Producer({"bootstrap.servers": bootstrap_servers, "transactional.id": f"{topic}-{aborted}"})
    producer.init_transactions()
    producer.begin_transaction()
    for key, item in rows:
        producer.produce(topic, key=str(key), value=json.dumps({KEY: key, "item": item}))
    producer.flush()
    if aborted:
        producer.abort_transaction()
    else:
        producer.commit_transaction()


def counts(result: Comparison) -> dict[str, int]:
    kinds = ("missing", "duplicate", "uncommitted", "different")
    return {kind: getattr(result, kind) for kind in kinds if getattr(result, kind)}


@pytest.mark.parametrize(
    ("name", "records", "found"),
    [
        ("equal", ROWS, {}),
        ("missing", ROWS[:2], {"missing": 1}),
        ("duplicate", [*ROWS, ROWS[0]], {"duplicate": 1}),
        ("uncommitted", [*ROWS, (4, "milk")], {"uncommitted": 1}),
        ("different", [(1, "tea"), (2, "water"), (3, None)], {"different": 1}),
        ("everything", [(1, "tea"), (1, "tea"), (2, "water"), (5, "x")],
         {"missing": 1, "duplicate": 1, "uncommitted": 1, "different": 1}),
    ],
)  # fmt: skip
def test_the_comparison_counts_the_differences(
    tmp_path: Path, bootstrap_servers: str, name: str, records: list[tuple[int, str | None]], found: dict[str, int]
) -> None:
    database = write_table(tmp_path / "orders.db", ROWS)
    write_topic(bootstrap_servers, name, records)
    write_topic(bootstrap_servers, name, [(9, "never")], aborted=True)
    result = compare(f"sqlite:///{database}", "orders", KEY, bootstrap_servers, name)
    assert (result.rows, result.records) == (len(ROWS), len(records))
    assert counts(result) == found
    assert result.is_equal is not bool(found)
    assert len(result.examples) == sum(found.values())


@pytest.mark.parametrize("kills", [3, 8, 20])
@pytest.mark.parametrize("units", [1, 20, 674])
def test_every_window_is_in_every_plan(kills: int, units: int) -> None:
    planned = plan(kills, units, random.Random(kills * units))
    assert len(planned) == kills
    windows = [kill.window for kill in planned if kill.window is not None]
    assert sorted(windows, key=lambda window: window.name) == sorted(Window, key=lambda window: window.name)
    assert all(1 <= kill.unit <= max(1, units // (2 * kills)) for kill in planned)
    assert plan(kills, units, random.Random(kills * units)) == planned, "a seed repeats its plan"


def test_in_a_short_load_the_windows_come_first() -> None:
    assert all(kill.window for kill in plan(8, 20, random.Random(1))[: len(Window)])
    orders = [[kill.window for kill in plan(8, 40, random.Random(seed))[: len(Window)]] for seed in range(20)]
    assert any(None in order for order in orders), "in a longer one they may come anywhere"


def test_a_death_is_described_by_its_place() -> None:
    exact = Death(Kill(Window.AFTER_DECISION, 2), 500, "COMMIT_KAFKA").describe()
    assert "between DB commit and Kafka commit" in exact
    assert "must commit" in exact
    assert "PREPARE_KAFKA" in Death(Kill(None, 2), 500, "PREPARE_KAFKA").describe()
    assert "none" in Death(Kill(None, 2), 0, "").describe()


@pytest.mark.parametrize("producer", ["native", pytest.param("librdkafka", marks=pytest.mark.slow)])
def test_the_demo_ends_with_equal_sides(tmp_path: Path, capsys: pytest.CaptureFixture[str], producer: str) -> None:
    directory = tmp_path / "kept"
    options = ["--rows", "600", "--kills", "3", "--seed", "3", "--keep", str(directory), "--producer", producer]
    assert main(["demo", *options]) == 0
    printed = capsys.readouterr().out
    assert "Both sides are the same, to the row." in printed
    for window in Window:
        assert window.where in printed
    assert (directory / "flights.db").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    "database",
    SERVERS,
)
def test_the_demo_ends_with_equal_sides_on_a_server(
    request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str], database: str
) -> None:
    options = ["--rows", "600", "--kills", "3", "--db", request.getfixturevalue(f"{database}_url")]
    assert main(["demo", *options]) == 0
    assert "Both sides are the same, to the row." in capsys.readouterr().out
    assert main(["demo", *options]) == 2
    assert capsys.readouterr().err.startswith("dualwrite: the database has a table flights already")


@pytest.mark.slow
def test_a_run_whose_sides_differ_ends_with_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dualwrite.cli.demo.compare", lambda *_: Comparison(rows=500, records=499, missing=1))
    assert main(["demo", "--rows", "500", "--kills", "3"]) == 1
    assert "THE TWO SIDES DIFFER" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--rows", "1"], "--rows 1: use 500 to 336776"),
        (["--rows", "400000"], "--rows 400000: use 500 to 336776"),
        (["--kills", "2"], "--kills 2: use at least 3"),
        (["--keep", "."], "--keep .: the directory is not empty"),
    ],
)
def test_senseless_arguments_are_refused(
    capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str
) -> None:
    assert main(["demo", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"dualwrite: {complaint}")
