"""The demo: its plan of kills, and a whole run."""

import random
from pathlib import Path

import pytest

from dualwrite.cli.main import main
from dualwrite.comparison.job import Comparison, Difference, DifferingKey
from dualwrite.demo.supervisor import Death, Kill, Window, plan
from tests.support.servers.databases import SERVERS


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
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = DifferingKey(Difference.ONLY_IN_TABLE, b"7", rows=1, records=0)
    result = Comparison(rows=500, records=499, differing={lost.difference: 1}, examples=[lost])
    monkeypatch.setattr("dualwrite.cli.demo.compare", lambda *_, **__: result)
    url = f"sqlite:///file:{tmp_path / 'flights.db'}?uri=true"
    assert main(["demo", "--rows", "500", "--kills", "3", "--db", f"{url}&password=hunter2"]) == 1
    printed = capsys.readouterr().out
    assert "The database is sqlite:///file" in printed
    assert "hunter2" not in printed
    assert "   only in the table: 7\n" in printed
    assert "THE TWO SIDES DIFFER" in printed


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--rows", "1"], "--rows 1: use 500 to 336776"),
        (["--rows", "400000"], "--rows 400000: use 500 to 336776"),
        (["--kills", "2"], "--kills 2: use at least 3"),
        (["--keep", "."], "--keep .: the directory is not empty"),
        (["--keep", "/dev/null"], "--keep /dev/null: File exists"),
        (["--keep", "/dev/null/x"], "--keep /dev/null/x: Not a directory"),
    ],
)
def test_senseless_arguments_are_refused(
    capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str
) -> None:
    assert main(["demo", *arguments]) == 2
    assert capsys.readouterr().err.startswith(f"dualwrite: {complaint}")
