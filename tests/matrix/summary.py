"""The log of a run, added up."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

AXES = ("victim", "kind", "database", "producer", "mode", "arrangement")
COUNTS = (
    "runs",
    "faults",
    "deaths",
    "missed",
    "units",
    "unanswered",
    "committed",
    "aborted",
    "replayed",
    "heuristic",
    "unsynced_bytes",
    "rows",
    "divergences",
    "errors",
    "skipped",
)
"""What is added up for each combination of the axes."""


def read_logs(paths: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """Every line of the logs."""
    for path in sorted(paths):
        for line in path.read_text(encoding="utf-8").splitlines():
            yield json.loads(line)


def summarised(lines: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The counts of each combination of the axes, the steps, the cuts, the audits, the processor time; each finding."""
    groups: dict[tuple[str, ...], dict[str, int]] = {}
    steps: dict[str, int] = {}
    audits = {"places": 0, "rows": 0, "records": 0, "divergences": 0}
    findings: list[str] = []
    processor = 0.0
    cuts = set[tuple[str, str, str, int]]()
    for line in lines:
        if "processor_seconds" in line:
            processor += line["processor_seconds"]
            continue
        if "audit" in line:
            audits["places"] += 1
            audits["rows"] += line["rows"]
            audits["records"] += sum(line["records"])
            audits["divergences"] += len(line["divergences"])
            findings += [f"audit of {line['audit']}: {found}" for found in line["divergences"]]
            continue
        group = groups.setdefault(tuple(line[axis] for axis in AXES), dict.fromkeys(COUNTS, 0))
        for name, value in _counts_of(line).items():
            group[name] += value
        steps[line["step"]] = steps.get(line["step"], 0) + line.get("faults", 0)
        for cut in line.get("cuts", ()):
            way, _, byte = cut.partition(" ")
            cuts.add((line["victim"], line["step"], way, int(byte)))
        findings += [f"{line['run']} {line['step']}: {found}" for found in line.get("divergences", ())]
        findings += [f"{line['run']} {line['step']}: {line['error']}"] if "error" in line else []
    return {
        "groups": [{**dict(zip(AXES, key, strict=True)), **groups[key]} for key in sorted(groups)],
        "steps": dict(sorted(steps.items())),
        "cuts": _cut_table(cuts),
        "audits": audits,
        "processor_seconds": round(processor, 1),
        "findings": findings,
    }


def _cut_table(cuts: Iterable[tuple[str, str, str, int]]) -> list[dict[str, Any]]:
    """For each connection, step and direction: how many different bytes were the first that did not arrive, the last of
    them, and up to where there was a cut at every byte."""
    bytes_of: dict[tuple[str, str, str], set[int]] = {}
    for victim, step, way, byte in cuts:
        bytes_of.setdefault((victim, step, way), set()).add(byte)
    return [
        {
            "victim": victim,
            "step": step,
            "way": way,
            "bytes": len(found),
            "every": next(byte for byte in count() if byte not in found),
            "last": max(found),
        }
        for (victim, step, way), found in sorted(bytes_of.items())
    ]


def _counts_of(line: Mapping[str, Any]) -> dict[str, int]:
    if "skipped" in line:
        return {"skipped": 1}
    if "error" in line:
        return {"runs": 1, "errors": 1}
    given = {name: line[name] for name in COUNTS if isinstance(line.get(name), int)}
    return {**given, "runs": 1, "divergences": len(line["divergences"])}


def added_by(summary: Mapping[str, Any], axes: Sequence[str]) -> list[dict[str, Any]]:
    """The counts of ``summary`` for each combination of ``axes`` alone."""
    found: dict[tuple[str, ...], dict[str, int]] = {}
    for group in summary["groups"]:
        counts = found.setdefault(tuple(group[axis] for axis in axes), dict.fromkeys(COUNTS, 0))
        for name in COUNTS:
            counts[name] += group[name]
    return [{**dict(zip(axes, key, strict=True)), **found[key]} for key in sorted(found)]


def total(summary: Mapping[str, Any]) -> dict[str, Any]:
    """All counts together."""
    rows = added_by(summary, ())
    return rows[0] if rows else dict.fromkeys(COUNTS, 0)


def is_sound(summary: Mapping[str, Any]) -> bool:
    """Whether nothing was found, by a run, by an audit, by an error of the programs, or by their end."""
    return not summary["findings"] and not summary.get("ended")
