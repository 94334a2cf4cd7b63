"""The log of a run is added up, and the page says what the counts say."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.matrix.cells import NOT_RUN, Cell, FaultKind, Mode, Victim
from tests.matrix.page import page_of
from tests.matrix.summary import added_by, is_sound, read_logs, summarised, total

PUBLISHED = Path(__file__).parents[2] / "docs" / "reference" / "crash-matrix.json"
CELL = Cell("STORE_STATE", Victim.APPLICATION, FaultKind.SIGKILL, "sqlite", "native", Mode.KEEP_PREPARED)
OTHER = Cell("COMMIT_KAFKA", Victim.BROKER, FaultKind.CUT, "mariadb", "librdkafka", Mode.RESUME)


def line(cell: Cell = CELL, **changes: Any) -> dict[str, Any]:
    counts = {"faults": 3, "deaths": 4, "missed": 1, "unsynced_bytes": 0, "rows": 50, "units": 9, "unanswered": 3}
    more = {"committed": 1, "aborted": 2, "replayed": 0, "heuristic": 0, "records": [50, 50], "divergences": []}
    return {"run": "r0.1.", "seed": 1, **cell.as_json(), **counts, **more, "seconds": 0.5, **changes}


AUDIT = {"audit": "sqlite_native", "rows": 100, "records": [100, 100], "divergences": []}


def page(lines: list[dict[str, Any]]) -> str:
    return page_of({**summarised(lines), "contexts": [{"seed": "1"}, {"seed": "2"}]})


def test_runs_of_one_combination_are_added_up() -> None:
    times = [{"processor_seconds": 5.0}, {"processor_seconds": 2.5}]
    summary = summarised([line(), line(faults=2, committed=0), line(OTHER), AUDIT, *times])
    (cut, killed) = sorted(summary["groups"], key=lambda group: group["kind"])[::-1]
    assert (killed["runs"], killed["faults"], killed["committed"]) == (2, 5, 1)
    assert (cut["runs"], cut["faults"]) == (1, 3)
    assert summary["steps"] == {"COMMIT_KAFKA": 3, "STORE_STATE": 5}
    assert total(summary)["deaths"] == 12
    assert summary["processor_seconds"] == 7.5
    assert [(row["victim"], row["runs"]) for row in added_by(summary, ("victim",))] == [
        ("application", 2),
        ("broker", 1),
    ]
    assert is_sound(summary)


@pytest.mark.parametrize(
    "wrong",
    [
        line(divergences=["lost write: ('a', 0)"]),
        line(error="Traceback: AssertionError"),
        {**AUDIT, "divergences": ["duplicate: ('a', 0)"]},
    ],
)
def test_whatever_is_wrong_is_a_finding_and_on_the_page(wrong: dict[str, Any]) -> None:
    summary = summarised([line(), wrong])
    assert not is_sound(summary)
    assert len(summary["findings"]) == 1
    assert summary["findings"][0].rpartition(": ")[2] in page([line(), wrong])


def test_a_process_that_ended_badly_is_a_finding() -> None:
    assert not is_sound({**summarised([line()]), "ended": ["process 1 ended with 1"]})


def test_cuts_are_told_by_connection_step_direction_and_byte() -> None:
    lines = [line(OTHER, cuts=["answers 0", "answers 1", "requests 0"]), line(OTHER, cuts=["answers 1", "answers 3"])]
    found = {each["way"]: (each["bytes"], each["every"], each["last"]) for each in summarised(lines)["cuts"]}
    assert found == {"answers": (3, 2, 3), "requests": (1, 1, 0)}
    assert "| broker | `COMMIT_KAFKA` | answers | 3 | 2 | 3 |" in page(lines)


def test_a_skipped_run_counts_as_none() -> None:
    skipped = {"run": "r0.1.", **CELL.as_json(), "skipped": "MariaDB is not installed"}
    counts = total(summarised([skipped]))
    assert (counts["runs"], counts["skipped"], counts["faults"]) == (0, 1, 0)
    assert "this machine lacks the server" in page([skipped])


def test_the_page_has_the_counts_and_the_reasons() -> None:
    text = page([line(), line(OTHER, deaths=1000), AUDIT])
    assert "**1,004 processes killed in 2 runs, 6 faults at the named step. 0 divergences, 0 errors" in text
    assert "| application | SIGKILL | 1 | 3 | 4 | 1 | 9 | 3 | 1 | 2 | 0 | 0 |" in text
    assert "| `STORE_STATE` | 3 |" in text
    assert "| seed | 1 | 2 |" in text
    assert "| resume, Apache Kafka of three nodes | it is not in this run |" in text
    assert "| keep-prepared, bundled broker | it is not" not in text
    assert "What stands here is a shorter run" in text
    assert "compared 100 rows with 200 records" in text


def test_the_page_of_a_whole_run_does_not_say_that_it_is_short() -> None:
    text = page([line(deaths=10_000), {"processor_seconds": 6000.0}])
    assert "A kill took 600 ms of processor time" in text
    assert "takes about 50 minutes on two processors" in text
    assert "shorter" not in text
    assert all(f"| {cells} | {reason} |" in text for cells, reason in NOT_RUN)


def test_logs_are_read_in_order(tmp_path: Path) -> None:
    for number in (1, 0):
        (tmp_path / f"runs-{number}.jsonl").write_text(json.dumps({"number": number}) + "\n")
    assert [each["number"] for each in read_logs(tmp_path.glob("*.jsonl"))] == [0, 1]


def test_the_published_page_is_that_of_its_counts() -> None:
    summary = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    assert PUBLISHED.with_suffix(".md").read_text(encoding="utf-8") == page_of(summary), "python -m tests.matrix --page"


def test_the_published_run_found_nothing() -> None:
    summary = json.loads(PUBLISHED.read_text(encoding="utf-8"))
    assert is_sound(summary)
    assert total(summary)["divergences"] == summary["audits"]["divergences"] == 0
    assert total(summary)["deaths"] > 0
