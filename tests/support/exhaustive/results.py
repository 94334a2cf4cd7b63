"""What a search of one model has found, and the page's table of all of them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tests.support.exhaustive.histories import HistoryModel, run_histories
from tests.support.exhaustive.states import BrokenPropertyError, StateModel, explore

Model = StateModel[Any] | HistoryModel


@dataclass(frozen=True)
class ModelResult:
    """One model, searched up to one bound.

    :param bound: up to where every history was seen.
    :param unit: what was counted: states, or histories.
    :param count: how many different ones.
    :param transitions: the steps between states, or the places where a history was asked for a fault.
    :param final: states from which no step leads on; each history has one.
    :param widest: the most states of one depth; for histories the most questions of one.
    :param always: the properties that held.
    :param sometimes: how many states, steps or histories had each of the others.
    :param broken: the property that did not hold, with the shortest history that shows it; empty if all did.
    """

    name: str
    about: str
    bound: str
    is_complete: bool
    unit: str
    count: int
    transitions: int
    final: int
    widest: int
    seconds: float
    always: Sequence[str] = ()
    sometimes: tuple[tuple[str, int], ...] = ()
    broken: str = ""

    @property
    def missing(self) -> list[str]:
        """What should have happened in some history, and did not."""
        return [name for name, times in self.sometimes if not times]

    @property
    def has_failed(self) -> bool:
        """True if a property was broken, or one that must hold sometimes never did."""
        return bool(self.broken or self.missing)


def searched(model: Model, seconds: float, most_states: float) -> ModelResult:
    """Search ``model`` for about so long."""
    try:
        if isinstance(model, StateModel):
            return _of_states(model, seconds, most_states)
        return _of_histories(model, seconds)
    except BrokenPropertyError as broken:
        return ModelResult(model.name, model.about, "", False, "states", 0, 0, 0, 0, 0.0, broken=str(broken))


def _of_states(model: StateModel[Any], seconds: float, most_states: float) -> ModelResult:
    found = explore(model, seconds=seconds, most_states=most_states)
    return ModelResult(
        model.name,
        model.about,
        "every history" if found.is_complete else f"every history of up to {found.depth} steps",
        found.is_complete,
        "states",
        found.states,
        found.transitions,
        found.final,
        found.widest,
        found.seconds,
        (*model.always, *model.asserted),
        tuple((name, found.seen[name]) for name in (*model.sometimes, *model.events)),
    )


def _of_histories(model: HistoryModel, seconds: float) -> ModelResult:
    with model.opened() as scenario:
        found = run_histories(scenario, seconds=seconds, least=model.least)
    return ModelResult(
        model.name,
        model.about,
        "every combination of faults" if found.is_complete else f"every combination of up to {found.faults} faults",
        found.is_complete,
        "histories",
        found.histories,
        found.choices,
        found.histories,
        found.most_choices,
        found.seconds,
        tuple(model.asserted),
        tuple((name, found.seen[name]) for name in model.events),
    )


def as_lines(result: ModelResult) -> str:
    """``result`` for a terminal."""
    lines = [f"{result.name}: {result.about}"]
    if result.broken:
        return "\n".join([*lines, f"  BROKEN: {result.broken}"])
    lines += [
        f"  {result.bound}: {_numbers(result)}, {result.seconds:.0f} s",
        *(f"  always     {name}" for name in result.always),
        *(f"  sometimes  {times:>11,}  {name}{'' if times else '  MISSING'}" for name, times in result.sometimes),
    ]
    return "\n".join(lines)


def _numbers(result: ModelResult) -> str:
    if result.unit == "states":
        return (
            f"{result.count:,} states, {result.transitions:,} steps, {result.final:,} states without a further step, "
            f"{result.widest:,} new states in the widest layer"
        )
    return f"{result.count:,} histories, {result.transitions:,} places for a fault, at most {result.widest:,} in one"


def as_markdown(results: Iterable[ModelResult]) -> str:
    """The tables of docs/reference/exhaustive.md."""
    results = list(results)
    states = [result for result in results if result.unit == "states"]
    histories = [result for result in results if result.unit != "states"]
    lines = [
        "| model | searched | bound | states | steps | at an end | widest layer | seconds |",
        "|---|---|---|---:|---:|---:|---:|---:|",
        *(
            f"| `{one.name}` | {one.about} | {one.bound} | {one.count:,} | {one.transitions:,} | {one.final:,} "
            f"| {one.widest:,} | {one.seconds:,.0f} |"
            for one in states
        ),
        "",
        "| model | searched | bound | histories | places for a fault | most in one history | seconds |",
        "|---|---|---|---:|---:|---:|---:|",
        *(
            f"| `{one.name}` | {one.about} | {one.bound} | {one.count:,} | {one.transitions:,} | {one.widest:,} "
            f"| {one.seconds:,.0f} |"
            for one in histories
        ),
    ]
    for name, ofs in _by_name(results).items():
        last = ofs[-1]
        lines += ["", f"### `{name}`", "", "Always:", "", *(f"- {prop}" for prop in last.always), "", "Sometimes:", ""]
        whats = "states or steps" if last.unit == "states" else "histories"
        heads = [one.bound if len(ofs) == 1 else one.about for one in ofs]
        lines += [
            f"| {whats} with it | {' | '.join(heads)} |",
            f"|---|{'---:|' * len(ofs)}",
        ]
        names = dict.fromkeys(prop for one in ofs for prop, _ in one.sometimes)
        counts = [dict(one.sometimes) for one in ofs]
        lines += [f"| {prop} | {' | '.join(_shown(each.get(prop)) for each in counts)} |" for prop in names]
    return "\n".join(lines) + "\n"


def _shown(times: int | None) -> str:
    return "" if times is None else f"{times:,}"


def _by_name(results: Iterable[ModelResult]) -> dict[str, list[ModelResult]]:
    found: dict[str, list[ModelResult]] = {}
    for result in results:
        found.setdefault(result.name, []).append(result)
    return found
