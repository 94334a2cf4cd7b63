"""The benchmarks run, and their report says what was measured. Tests do not check which client is faster."""

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from benchmarks import native, rounds
from benchmarks.contenders import KAFKA, OURS
from benchmarks.figures import FIGURES
from benchmarks.report import FigureComparison, is_ahead
from benchmarks.rounds import WithKafka
from benchmarks.standings import Standings
from benchmarks.unit_contenders import DATABASE, NATIVE, OUTBOX
from benchmarks.unit_places import require_same

HOME = Path(__file__).parents[3]
TINY = ["--rounds=1", "--warm-up=0", "--seconds=0.05", "--megabytes=1", "--restart-mebibytes=1", "--loaded-megabytes=1"]


def measured(directory: Path, *arguments: str) -> dict[str, list[str]]:
    """The lines of every figure that a run of the bundled broker alone measured."""
    report = directory / "report.json"
    command = [sys.executable, "-m", "benchmarks.broker", "--no-kafka", *TINY, f"--json={report}", *arguments]
    done = subprocess.run(command, cwd=HOME, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "without Apache Kafka beside it" in done.stderr
    figures = json.loads(report.read_text())["figures"]
    for figure in figures:
        (sample,) = figure["samples"][OURS]
        assert all(value >= 0 for value in sample.values())
        assert f"### {figure['figure']}, durability={figure['durability']}\n" in done.stdout
    return {f"{figure['figure']} {figure['durability']}": list(figure["samples"][OURS][0]) for figure in figures}


@pytest.mark.slow
def test_transactions_are_measured_by_number_of_producers(tmp_path: Path) -> None:
    lines = measured(tmp_path, "--figures", "transactions", "--durabilities", "fsync", "--producers", "1", "2")
    assert list(lines) == ["transactions fsync"]
    assert [line for line in lines["transactions fsync"] if "per second" in line or "p99" in line] == [
        "1 producer, per second",
        "1 producer, p99",
        "2 producers, per second",
        "2 producers, p99",
    ]


@pytest.mark.slow
def test_the_native_producer_is_measured_beside_librdkafka(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "benchmarks.native", "--no-kafka", "--rounds=1", "--warm-up=0", "--seconds=0.05"]
    command += ["--durabilities", "os", "--producers", "1", "2", "--units", "10", "--processes", f"--json={report}"]
    done = subprocess.run(command, cwd=HOME, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    singles, units = json.loads(report.read_text())["figures"]
    assert (singles["figure"], units["figure"]) == ("singles on the bundled broker", "units on the bundled broker")
    for figure, names in ((singles, ("1 producer", "2 producers")), (units, ("10 records",))):
        assert list(figure["samples"]) == ["native", "librdkafka"]
        for (sample,) in figure["samples"].values():
            for name in names:
                assert all(sample[f"{name}, {what}"] > 0 for what in ("per second", "p50", "p99", "CPU"))
    assert "| | native | librdkafka | native / librdkafka | |" in done.stdout


@pytest.mark.slow
def test_units_of_work_are_measured_beside_common_alternatives(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "benchmarks.units", "--databases", "sqlite", "--rounds=1", "--seconds=0.05"]
    command += ["--workers", "2", f"--json={report}", "--contenders", *(compared := [NATIVE, OUTBOX, DATABASE])]
    done = subprocess.run(command, cwd=HOME, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    throughput, latency = json.loads(report.read_text())["figures"]
    assert throughput["figure"] == "throughput: SQLite, the bundled broker, 2 threads"
    assert latency["figure"] == "latency: SQLite, the bundled broker, 1 thread"
    assert (list(throughput["samples"]), list(latency["samples"])) == (compared, compared[:2])
    for figure, lines in ((throughput, ("per second", "p50", "p99", "CPU")), (latency, ("p50", "p99"))):
        assert all(sample[line] > 0 for (sample,) in figure["samples"].values() for line in lines)
        assert figure["ratios"][lines[0]][NATIVE] == 1
    assert "| | per second | p50 (ms) | p99 (ms) | CPU" in done.stdout


@pytest.mark.slow
def test_a_recovery_is_measured_and_verified(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "benchmarks.recovery", "--databases", "sqlite", "--rounds=1", "--ids=5"]
    done = subprocess.run([*command, f"--json={report}"], cwd=HOME, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (figure,) = json.loads(report.read_text())["figures"]
    assert figure["figure"] == "recovery of 5 transactional ids"
    assert figure["samples"]["SQLite"][0]["s"] > 0


@pytest.mark.parametrize(
    ("rows", "records", "said"),
    [
        (["a", "b"], ["a"], "1 rows without a record, 0 records without a row"),
        (["a"], ["a", "a"], "0 rows without a record, 1 records without a row"),
        ([], [], "0 rows and 0 records"),
    ],
)
def test_a_benchmark_whose_two_sides_differ_reports_no_result(rows: list[str], records: list[str], said: str) -> None:
    with pytest.raises(SystemExit, match=said):
        require_same(rows, records, "somebody")


def test_standings_compare_one_with_all_others() -> None:
    samples = {name: [{"per second": rate}] for name, rate in (("ours", 300.0), ("theirs", 200.0))}
    table = list(Standings("figure", "os", samples, "ours", ("per second",)).markdown())
    assert table[-3:] == ["| ours | 300 | 1.00 |", "| theirs | 200 | 1.50 |", ""]


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--rounds", "0", "'0': allowed: whole numbers, 1 or more"),
        ("--warm-up", "-1", "'-1': allowed: whole numbers, 0 or more"),
        ("--seconds", "0", "'0': allowed: seconds, more than 0"),
        ("--seconds", "soon", "'soon': allowed: seconds, more than 0"),
        ("--producers", "0", "'0': allowed: whole numbers, 1 or more"),
        ("--units", "1.5", "'1.5': allowed: whole numbers, 1 or more"),
    ],
)
def test_a_senseless_option_is_refused_with_one_line(
    option: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks.native", f"{option}={value}"])
    with pytest.raises(SystemExit) as ended:
        native.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith(f"argument {option}: {said}")


@pytest.mark.slow
def test_the_cost_of_the_guarantees_is_measured(tmp_path: Path) -> None:
    """Eleven transactions, of which the tenth is aborted: a read_committed reader gets fewer records."""
    lines = measured(tmp_path, "--figures", "guarantees", "--durabilities", "os", "--megabytes=55")
    assert [line for line in lines["guarantees os"] if line.endswith("MB/s")] == [
        "produce, plain, MB/s",
        "produce, idempotent, MB/s",
        "produce, in transactions, MB/s",
        "consume, read_uncommitted, MB/s",
        "consume, read_committed, MB/s",
    ]


@pytest.mark.slow
def test_every_figure_is_measured(tmp_path: Path) -> None:
    lines = measured(tmp_path)
    assert {name.split()[0] for name in lines} == {name for name, figure in FIGURES.items() if figure.is_usual}
    assert "consume 100 B, MB/s" in lines["throughput os"]
    assert "each in a transaction, p99" in lines["latency fsync"]
    assert lines["restart os"] == ["restart after a clean stop, s", "restart after kill -9, s"]


def comparison(ours: dict[str, list[float]], kafka: dict[str, list[float]]) -> FigureComparison:
    def rounds(values: dict[str, list[float]]) -> list[dict[str, float]]:
        return [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]

    return FigureComparison("figure", "os", {OURS: rounds(ours), KAFKA: rounds(kafka)})


def test_a_ratio_is_of_medians_and_lower_is_ahead_for_times_alone() -> None:
    both = comparison(
        {"bulk, MB/s": [200.0, 100.0, 900.0], "single, p50": [1.0, 3.0, 2.0]},
        {"bulk, MB/s": [100.0, 90.0, 110.0], "single, p50": [4.0, 4.0, 4.0]},
    )
    assert both.ratio("bulk, MB/s") == 2.0
    assert both.ratio("single, p50") == 0.5
    assert [is_ahead("bulk, MB/s", ratio) for ratio in (2.0, 0.5)] == [True, False]
    assert [is_ahead("single, p50", ratio) for ratio in (2.0, 0.5)] == [False, True]


def test_a_table_has_the_load_beside_the_first_line_of_a_measurement() -> None:
    values = {"a, per second": [10.0], "a, p50": [2.0], "a, broker": [0.5], "a, clients": [0.25]}
    table = list(comparison(values, {**values, "a, per second": [20.0]}).markdown())
    assert table[-3:] == [
        "| a, per second (transactions) | 10 | 20 | 0.50 | behind | 0.50 + 0.25; 0.50 + 0.25 |",
        "| a, p50 (ms) | 2 | 2 | 1.00 | behind |  |",
        "",
    ]


def test_no_ratio_is_printed_without_apache_kafka() -> None:
    alone = FigureComparison("figure", "os", {OURS: [{"single, p50": 1.0}]})
    assert alone.ratio("single, p50") is None
    assert "| single, p50 (ms) | 1 |  |  |  |  |" in list(alone.markdown())


@pytest.mark.parametrize(
    ("config", "prefix", "is_warned"),
    [
        ("'--enable-optimizations' '--with-lto'", "/opt/python", False),
        ("'--enable-shared'", "/usr", False),
        ("'--enable-shared'", "/opt/python", True),
        (None, "/opt/python", True),
    ],
)
def test_an_interpreter_that_was_built_without_optimisation_is_noticed(
    config: str | None,
    prefix: str,
    is_warned: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sysconfig, "get_config_var", lambda name: config)
    monkeypatch.setattr(sys, "base_prefix", prefix)
    options = rounds.parser_of("", ["nothing"], 0, WithKafka.NEVER).parse_args(["--directory", str(tmp_path)])
    options.no_kafka = True
    rounds.measure(options, lambda _: iter(()))
    said = capsys.readouterr()
    assert ("was built without --enable-optimizations" in said.err) is is_warned
    assert ("(built without optimisation)" in said.out) is is_warned
