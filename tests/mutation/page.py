"""The page of the documentation, in Markdown, from the results of a run."""

from collections import Counter
from collections.abc import Sequence

from tests.mutation.explanations import read_explanations
from tests.mutation.results import ExplainedMutant, RoomResult
from tests.mutation.rooms import ROOMS

_INTRODUCTION = """# Mutation testing

`python -m tests.mutation` changes the code of pure rooms in small ways, one change at a time, and runs the unit tests
of the room on each *mutant*. A mutant that no test notices shows what the tests do not check. This page has the counts
of a run. The program wrote it.

[mutmut](https://mutmut.readthedocs.io) makes the mutants: another comparison, `and` for `or`, a number plus one, a
condition without its `not`, `None` for what is assigned or passed, an argument left out, `break` and `continue`, other
text in a string. It changes functions and methods. It leaves alone what stands outside of them, such as a table of
transitions, and functions under a decorator other than `staticmethod` and `classmethod`, such as properties.

The rooms decide, and do no I/O. Their tests are fast and always do the same; Hypothesis tries the same examples each
time. mutmut runs those tests that call the changed function. The slow tests, the simulation, and the tests with a
database or a broker do not take part, so the page understates what the whole suite notices.
"""

_READING = """## The run

*Killed*: a test failed. *Timed out*: the tests did not end in many times their usual time, as with an endless loop. On
a busy machine they may also be late without one: `--again` tries such mutants once more. The score is the part of the
tried mutants that were killed or timed out. *Explained* mutants survived, and the reason is [below](#what-survived).
Where a column says *not tried*, the run was stopped before it came to those: mutants with fast tests come first.
"""

_UNEXPLAINED = """These survived the run. A test that was written since may kill some of them; `--again` tells.
"""

_AGAIN = """## Run it again

```console
$ make mutation                                      # all rooms; goes on where a run was stopped
$ python -m tests.mutation --rooms coordinator/rules --afresh
$ python -m tests.mutation --again                   # what survived or timed out, after a change of the tests
$ python -m tests.mutation --read --json docs/reference/mutation.json --markdown docs/reference/mutation.md
```

It needs the extra `mutation`. The mutated copies and mutmut's output are in `build/mutation/`; `mutmut browse` in a
room's folder shows each mutant. The program prints each survivor that `tests/mutation/explained.yaml` does not explain,
and ends with 1 if there is one. Either a test kills it, or the file gets the reason.
"""


def markdown(results: Sequence[RoomResult]) -> str:
    """The page."""
    lines = [_INTRODUCTION, _READING, *_table(results), "", *_extent(results), ""]
    unexplained = [line for result in results for line in result.unexplained]
    if unexplained:
        lines += ["## Without an explanation", "", _UNEXPLAINED, *(f"- `` {line} ``" for line in unexplained), ""]
    lines += _survivors([mutant for result in results for mutant in result.explained])
    return "\n".join([*lines, _AGAIN])


def _table(results: Sequence[RoomResult]) -> list[str]:
    headings = ["room", "mutants", "killed", "timed out", "explained", "unexplained", "score"]
    if any(result.unfinished for result in results):
        headings.insert(2, "not tried")
    lines = ["| " + " | ".join(headings) + " |", "|---" + "|--:" * (len(headings) - 1) + "|"]
    for result in results:
        cells = [
            f"`{ROOMS[result.room].folder}`",
            f"{result.mutants:,}",
            f"{result.killed:,}",
            f"{result.timed_out:,}",
            f"{len(result.explained):,}",
            f"{len(result.unexplained):,}",
            f"{result.score:.1%}",
        ]
        if "not tried" in headings:
            cells.insert(2, f"{result.unfinished:,}")
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def _extent(results: Sequence[RoomResult]) -> list[str]:
    """Which files the rooms of the table have, and which rooms have no run."""
    run = [ROOMS[result.room] for result in results]
    lines = []
    for room in run:
        names = ", ".join(f"`{name}`" for name in room.files)
        lines.append(f"- `{room.folder}`: {'all files' if room.is_whole else f'of its files {names}'}.")
    missing = ", ".join(f"`{room.folder}`" for room in ROOMS.values() if room not in run)
    return [*lines, *([f"- Not in this run: {missing}."] if missing else [])]


def _survivors(explained: Sequence[ExplainedMutant]) -> list[str]:
    lines = ["## What survived", ""]
    for group in read_explanations():
        members = [mutant for mutant in explained if mutant.title == group.title]
        if members:
            lines += [f"### {group.title}", "", f"{_count(members)} {group.reason.strip()}", ""]
            whys: Counter[tuple[str, str, str]] = Counter(
                (mutant.file, mutant.function, mutant.why) for mutant in members if mutant.why
            )
            lines += [f"- `{file}`, `{name}` ({number}): {why}" for (file, name, why), number in whys.items()]
            lines += [""] if whys else []
    return lines


def _count(members: Sequence[ExplainedMutant]) -> str:
    return f"{len(members):,} mutant{'s' if len(members) > 1 else ''}."
