"""The page of a run in Markdown: docs/reference/crash-matrix.md, and the summary of any other run."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.matrix.cells import NOT_RUN, Mode
from tests.matrix.summary import added_by, is_sound, total

_COLUMNS = {
    "runs": "runs",
    "faults": "faults",
    "deaths": "killed",
    "missed": "missed",
    "units": "units",
    "unanswered": "in doubt",
    "committed": "committed",
    "aborted": "aborted",
    "replayed": "replayed",
    "divergences": "divergences",
}
_TEXT = """# The crash matrix

Counts of a run of `python -m tests.matrix`, which kills real processes at each step of the recipe and compares both
sides after recovery.

## How to read it

A *run* is one cell: a step of [the recipe](../recipe.md), a victim, a kind of fault, a database, a producer, a mode. It
strikes several times, recovers, and compares. *Faults* struck at the named step: the application had stopped itself
right before it. *Missed* attempts did not come to the step, and count for nothing. *Killed* processes died by SIGKILL
with units of work in progress, among them those whose death only prepared a fault in recovery. *In doubt* are units
whose caller had no answer. Recovery *committed* or *aborted* each of them on both sides. *Replayed* units were decided,
timed out in Kafka, and were produced again.

A *divergence* is any of these, after recovery: a row without its record, or a record without its row, as a
`read_committed` consumer sees it; a record twice; a part of a unit; an answer that was wrong; a last stable offset that
is not the end of its partition; a slot that is not free; a heuristic outcome on record. At the end of the run an
*audit* compares everything that each place has ever written.
"""
_NEIGHBOURS = """## Side by side

While one application dies, another is at work. Two databases under one application name end each other's transactions,
and two clusters say of each other's slots that their records may be missing: [use one name for each
database and for each cluster](../workers.md#one-application-one-database-one-cluster). On two databases a difference
counts as a divergence unless a heuristic outcome is on record; on two clusters rows and records must agree. *Heuristic*
is the number of outcomes on record.
"""


def page_of(summary: Mapping[str, Any]) -> str:
    """The page of a run.

    :param summary: as :func:`tests.matrix.summary.summarised` has made it, with the ``contexts`` of its runs.
    """
    parts = [
        _TEXT,
        "## The run\n",
        *_contexts(summary["contexts"]),
        *_totals(summary),
        "## By victim and kind\n",
        *_table(added_by(_alone(summary), ("victim", "kind")), ("victim", "kind")),
        "## By database, producer and mode\n",
        *_table(added_by(_alone(summary), ("database", "producer", "mode")), ("database", "producer", "mode")),
        "## By step\n",
        *_steps(summary["steps"]),
        *_cuts(summary["cuts"]),
        *_neighbours(summary),
        "## Every combination\n",
        *_table(added_by(_alone(summary), _ALL), _ALL),
        "## What the run lacks\n",
        "| cells | why |\n|---|---|",
        *(f"| {cells} | {reason} |" for cells, reason in NOT_RUN),
        *_skipped(summary),
        "",
    ]
    return "\n".join(parts)


_WHOLE_RUN = 10_000
_ALL = ("mode", "database", "producer", "victim", "kind")


def _alone(summary: Mapping[str, Any]) -> dict[str, Any]:
    return {"groups": [each for each in summary["groups"] if each["arrangement"] == "one application"]}


def _contexts(contexts: Sequence[Mapping[str, str]]) -> Iterator[str]:
    yield f"| {'| ' * len(contexts)}|\n|---|{'---|' * len(contexts)}"
    for name in contexts[0]:
        cells = [context[name].replace("|", "\\|") for context in contexts]
        yield f"| {name} | {' | '.join(cells)} |"
    yield ""


def _totals(summary: Mapping[str, Any]) -> Iterator[str]:
    counts, audits = total(summary), summary["audits"]
    yield (
        f"**{counts['deaths']:,} processes killed in {counts['runs']:,} runs, {counts['faults']:,} faults at the named "
        f"step. {counts['divergences']:,} divergences, {counts['errors']:,} errors of the programs.** "
        f"{counts['unanswered']:,} units of {counts['units']:,} were in doubt: recovery committed "
        f"{counts['committed']:,} and aborted {counts['aborted']:,}; {counts['replayed']:,} were replayed. The audits "
        f"of {audits['places']:,} places compared {audits['rows']:,} rows with {audits['records']:,} records, and "
        f"found {audits['divergences']:,} divergences. Power cuts met {counts['unsynced_bytes']:,} unsynced bytes.\n"
    )
    yield _speed(counts["deaths"], summary["processor_seconds"])
    if not is_sound(summary):
        yield "Found:\n"
        found = [*summary["findings"], *summary.get("ended", ())]
        yield from (f"- `{line.splitlines()[-1]:.200}`" for line in found)
        yield ""


def _speed(deaths: int, processor: float) -> str:
    if not deaths:
        return ""
    minutes = _WHOLE_RUN * processor / deaths / 2 / 60
    said = (
        f"A kill took {1000 * processor / deaths:,.0f} ms of processor time, with all that a run does beside: so "
        f"`make matrix`, until {_WHOLE_RUN:,} processes are killed, takes about {minutes:,.0f} minutes on two "
        "processors that do nothing else.\n"
    )
    return said if deaths >= _WHOLE_RUN else f"{said[:-1]} What stands here is a shorter run.\n"


def _table(rows: Sequence[Mapping[str, Any]], axes: Sequence[str]) -> Iterator[str]:
    yield f"| {' | '.join([*axes, *_COLUMNS.values()])} |"
    yield f"|{'---|' * len(axes)}{'--:|' * len(_COLUMNS)}"
    for row in rows:
        if row["runs"]:
            yield f"| {' | '.join([*(row[axis] for axis in axes), *(f'{row[name]:,}' for name in _COLUMNS)])} |"
    yield ""


def _steps(steps: Mapping[str, int]) -> Iterator[str]:
    yield "| step | faults |\n|---|--:|"
    yield from (f"| `{step}` | {count:,} |" for step, count in steps.items())
    yield ""


def _cuts(cuts: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if not cuts:
        return
    yield "## Cuts\n"
    yield "The first byte that did not arrive, counted from the beginning of the step on, in all runs together.\n"
    yield "| connection to | step | direction | different bytes | at every byte below | last byte |"
    yield "|---|---|---|--:|--:|--:|"
    for each in cuts:
        counts = " | ".join(f"{each[name]:,}" for name in ("bytes", "every", "last"))
        yield f"| {each['victim']} | `{each['step']}` | {each['way']} | {counts} |"
    yield ""


def _neighbours(summary: Mapping[str, Any]) -> Iterator[str]:
    rows = [row for row in added_by(summary, ("arrangement",)) if row["arrangement"] != "one application"]
    if not rows:
        return
    yield _NEIGHBOURS
    columns = {**_COLUMNS, "heuristic": "heuristic"}
    yield f"| arrangement | {' | '.join(columns.values())} |"
    yield f"|---|{'--:|' * len(columns)}"
    for row in rows:
        yield f"| {row['arrangement']} | {' | '.join(f'{row[name]:,}' for name in columns)} |"
    yield ""


def _skipped(summary: Mapping[str, Any]) -> Iterator[str]:
    there = {group["mode"] for group in summary["groups"] if group["runs"]}
    yield from (f"| {mode.value} | it is not in this run |" for mode in Mode if mode.value not in there)
    skipped = sum(group["skipped"] for group in summary["groups"])
    if skipped:
        yield f"| {skipped:,} runs | this machine lacks the server |"
