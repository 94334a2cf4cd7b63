"""The three state machines of docs/reference/states.md as charts. Their tables give the states and the arrows."""

from collections.abc import Mapping

from drawing.state_chart import LONGEST_NAME, Arrow, Box, StateChart, Way, wrapped
from drawing.svg import Point
from dualwrite.broker.core.groups import TRANSITIONS as GROUP_TRANSITIONS
from dualwrite.broker.core.groups import GroupState
from dualwrite.broker.core.transactions import TRANSITIONS as TRANSACTION_TRANSITIONS
from dualwrite.broker.facts.transactions import TransactionStatus
from dualwrite.coordinator.rules.machine import RESULTS, STEPS, TRANSITIONS, UnitState

_Table = Mapping[TransactionStatus, Mapping[TransactionStatus, str]] | Mapping[GroupState, Mapping[GroupState, str]]
TRANSACTION_BEGINS, GROUP_BEGINS = "InitProducerId", "JoinGroup, or a committed offset"
"""What makes a transactional id and a group, which are EMPTY then."""
_PILL = Point(132, 32)

_U = UnitState
_PLACES: Mapping[UnitState, tuple[tuple[int, int], ...]] = {
    _U.NEW: ((1, 0),),
    _U.BEGINNING_DATABASE: ((1, 1),),
    _U.RUNNING: ((1, 2),),
    _U.BEGINNING_KAFKA: ((1, 3),),
    _U.PRODUCING: ((1, 4),),
    _U.PREPARING_KAFKA: ((1, 5),),
    _U.STORING_STATE: ((1, 6),),
    _U.COMMITTING_DATABASE: ((1, 7),),
    _U.COMMITTING_KAFKA: ((1, 8),),
    _U.ROLLING_BACK_DATABASE_ALONE: ((0, 1),),
    _U.COMMITTING_DATABASE_ALONE: ((0, 3),),
    _U.LEAVING_COMMIT: ((0, 8),),
    _U.DOOMED: ((2, 3),),
    _U.ROLLING_BACK_DATABASE: ((2, 5),),
    _U.ABORTING_KAFKA: ((2, 6),),
    _U.READING_DECISION: ((2, 7),),
    _U.LEAVING_ABORT: ((3, 5),),
    _U.LEAVING_DOUBT: ((3, 7),),
    _U.SUCCEEDED: ((1, 9), (0, 4)),
    _U.ROLLED_BACK: ((3, 6), (0, 2)),
    _U.IN_DOUBT: ((3, 8),),
    _U.DATABASE_FAILED: ((0, 5),),
}
"""Column and row of each state: in the middle a unit in which nothing fails, on its left what happens without records,
on its right what happens after a failure. The ends stand where they are reached."""
_UNIT_WAYS = {
    (_U.RUNNING, _U.ROLLING_BACK_DATABASE_ALONE): Way("lr", (-12, 16)),
    (_U.RUNNING, _U.COMMITTING_DATABASE_ALONE): Way("lr", (12, 0)),
    (_U.COMMITTING_DATABASE_ALONE, _U.SUCCEEDED): Way(copy=1),
    (_U.COMMITTING_DATABASE_ALONE, _U.DATABASE_FAILED): Way("ll", turn=14, segment=1, along=0.75),
    (_U.ROLLING_BACK_DATABASE_ALONE, _U.ROLLED_BACK): Way("bt", (-24, -24), copy=1),
    (_U.PRODUCING, _U.ROLLING_BACK_DATABASE): Way("rl", (0, -16)),
    (_U.STORING_STATE, _U.ROLLING_BACK_DATABASE): Way("rl", (0, 16)),
    (_U.ABORTING_KAFKA, _U.LEAVING_ABORT): Way("rl", (-14, 0)),
    (_U.ABORTING_KAFKA, _U.ROLLED_BACK): Way("rl", (8, 8)),
    (_U.READING_DECISION, _U.COMMITTING_KAFKA): Way("br"),
    (_U.LEAVING_COMMIT, _U.SUCCEEDED): Way("bl", segment=1),
}


def dual_write_chart() -> StateChart:
    """One dual write."""
    boxes = {state.name: tuple(_unit_box(state, *place) for place in _PLACES[state]) for state in TRANSITIONS}
    labels: dict[tuple[str, str], list[str]] = {}
    for state, outgoing in TRANSITIONS.items():
        for event, target in outgoing.items():
            labels.setdefault((state.name, target.name), []).append(event.name)
    return StateChart(
        "One dual write",
        "The states of a unit of work. The table below the picture has every state, its step, and what follows.",
        Point(848, 884),
        boxes,
        tuple(Arrow(source, target, ", ".join(events)) for (source, target), events in labels.items()),
        {(source.name, target.name): way for (source, target), way in _UNIT_WAYS.items()},
    )


def _unit_box(state: UnitState, column: int, row: int) -> Box:
    at = Point(109 + 210 * column, 49 + 87 * row)
    if state in RESULTS:
        return Box(at, (state.value,), size=_PILL, kind="end")
    if state not in STEPS:
        return Box(at, (state.value,), size=Point(150, 40))
    return Box(at, wrapped(state.value, LONGEST_NAME), STEPS[state].name)


_IDLE = "IDLE"
_T = TransactionStatus
_TRANSACTION_PLACES = {
    _T.EMPTY: Point(222, 120),
    _T.COMPLETE_COMMIT: Point(222, 210),
    _T.COMPLETE_ABORT: Point(222, 300),
    _T.ONGOING: Point(762, 120),
    _T.PREPARE_COMMIT: Point(502, 210),
    _T.PREPARE_ABORT: Point(502, 300),
    _T.DEAD: Point(222, 446),
}
_TRANSACTION_WAYS = {
    (_IDLE, _T.EMPTY.name): Way("ll", (20, 0), turn=20, segment=1, beside=-1),
    (_IDLE, _T.ONGOING.name): Way("rl", (-105, 0)),
    (_IDLE, _T.PREPARE_ABORT.name): Way("rb", (135, 0), wrap=24),
    (_T.ONGOING.name, _T.ONGOING.name): Way("tt", (-30, 30), turn=24, segment=1, wrap=28),
    (_T.ONGOING.name, _T.PREPARE_COMMIT.name): Way("br", (-24, 0), segment=1),
    (_T.ONGOING.name, _T.PREPARE_ABORT.name): Way("br", (24, 0), segment=1, wrap=16),
}


def transaction_chart() -> StateChart:
    """A transactional id in the broker. What the three states without an open transaction have in common leaves the
    box around them."""
    idle = {source.name for source in TRANSACTION_TRANSITIONS[_T.DEAD]}
    boxes = {state.name: (_broker_box(state.name, at),) for state, at in _TRANSACTION_PLACES.items()}
    boxes[_IDLE] = (Box(Point(222, 225), ("no transaction is open",), size=Point(190, 318), kind="around"),)
    arrows = _arrows(TRANSACTION_TRANSITIONS)
    for target in _T:
        into = [each for each in arrows if each.target == target.name and each.source in idle]
        if {each.source for each in into} == idle and len({each.label for each in into}) == 1:
            arrows = [each for each in arrows if each not in into]
            arrows.append(Arrow(_IDLE, target.name, into[0].label))
    return StateChart(
        "A transactional id in the broker",
        "The states of a transactional id. The table below the picture has every transition and its cause.",
        Point(850, 490),
        boxes,
        tuple(arrows),
        _TRANSACTION_WAYS,
        Arrow("", _T.EMPTY.name, TRANSACTION_BEGINS),
        begin_shift=62,
    )


_G = GroupState
_GROUP_PLACES = {
    _G.EMPTY: Point(200, 104),
    _G.PREPARING_REBALANCE: Point(200, 214),
    _G.COMPLETING_REBALANCE: Point(200, 324),
    _G.STABLE: Point(200, 434),
    _G.DEAD: Point(550, 104),
}
_GROUP_WAYS = {
    (_G.EMPTY, _G.PREPARING_REBALANCE): Way("bt", (-34, -34), beside=-1),
    (_G.PREPARING_REBALANCE, _G.EMPTY): Way("tb", (34, 34), wrap=24),
    (_G.PREPARING_REBALANCE, _G.COMPLETING_REBALANCE): Way("bt", (-34, -34), beside=-1, wrap=24),
    (_G.COMPLETING_REBALANCE, _G.PREPARING_REBALANCE): Way("tb", (34, 34), wrap=28),
    (_G.COMPLETING_REBALANCE, _G.STABLE): Way("bt", (-34, -34), beside=-1),
    (_G.STABLE, _G.PREPARING_REBALANCE): Way("rr", turn=190, segment=1, wrap=28),
    (_G.EMPTY, _G.DEAD): Way(wrap=24),
}


def group_chart() -> StateChart:
    """A classic group in the broker."""
    return StateChart(
        "A classic group in the broker",
        "The states of a classic group. The table below the picture has every transition and its cause.",
        Point(650, 478),
        {state.name: (_broker_box(state.name, at),) for state, at in _GROUP_PLACES.items()},
        tuple(_arrows(GROUP_TRANSITIONS)),
        {(source.name, target.name): way for (source, target), way in _GROUP_WAYS.items()},
        Arrow("", _G.EMPTY.name, GROUP_BEGINS),
    )


def _broker_box(state: str, at: Point) -> Box:
    words = state.replace("_", " ").lower()
    if state == "DEAD":
        return Box(at, (words,), size=_PILL, kind="end")
    return Box(at, wrapped(words, LONGEST_NAME), size=Point(150, 44))


def _arrows(table: _Table) -> list[Arrow]:
    return [
        Arrow(source.name, target.name, cause) for target, sources in table.items() for source, cause in sources.items()
    ]
