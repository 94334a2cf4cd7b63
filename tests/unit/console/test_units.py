"""Units of work under observation: their steps, the seconds in which they ended, and the plots of both."""

import pytest

from dualwrite.console.plots import HEIGHT, WIDTH, plot, plots_of, rounded_up
from dualwrite.console.units import (
    MOST_POSITIONS,
    MOST_SAMPLES,
    MOST_TIMELINES,
    PRODUCE,
    SECONDS_KEPT,
    WAIT,
    SecondOfUnits,
    Timeline,
    TimelineOffsets,
    UnitLog,
    percentile,
)
from dualwrite.coordinator.rules.machine import Result, Step
from dualwrite.ids import TopicPartition


class SteppedSeconds:
    """A clock that a test moves on."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> SteppedSeconds:
    return SteppedSeconds()


@pytest.fixture
def log(clock: SteppedSeconds) -> UnitLog:
    return UnitLog(clock)


def timeline(seconds: float = 0.1, ended_as: str = "committed", name: str = "a-0") -> Timeline:
    return Timeline(name, ended_as, seconds, ())


def test_a_unit_s_steps_are_timed_from_its_beginning(log: UnitLog, clock: SteppedSeconds) -> None:
    unit = log.unit_began()
    clock.now += 1
    unit.slot_taken("a-0")
    for step, between in (
        (Step.BEGIN_DATABASE, 0),
        (Step.BEGIN_KAFKA, 2),
        (Step.PREPARE_KAFKA, 4),
        (Step.COMMIT_KAFKA, 0),
    ):
        clock.now += between
        unit.step_began(step)
        clock.now += 1
        unit.step_ended(step, None)
    unit.ended(Result.SUCCEEDED, None)
    ((why, shown),) = log.shown()
    assert (why, shown.transactional_id, shown.ended_as, shown.seconds) == ("the newest", "a-0", "committed", 11.0)
    assert [(step.name, step.began, step.ended) for step in shown.steps] == [
        (WAIT, 0, 1),
        ("begin in the database", 1, 2),
        (PRODUCE, 2, 4),
        ("begin in Kafka", 4, 5),
        (PRODUCE, 5, 9),
        ("prepare: every record is acknowledged", 9, 10),
        (PRODUCE, 10, 10),
        ("complete in Kafka", 10, 11),
    ]


def test_a_failed_step_has_the_name_of_its_error_and_no_message(log: UnitLog) -> None:
    unit = log.unit_began()
    unit.slot_taken("a-0")
    unit.step_began(Step.COMMIT_DATABASE)
    unit.step_ended(Step.COMMIT_DATABASE, ValueError("a secret"))
    unit.ended(Result.IN_DOUBT, ValueError("a secret"))
    ((_, shown),) = log.shown()
    assert (shown.ended_as, shown.is_good, shown.steps[-1].failed) == ("in doubt", False, "ValueError")


@pytest.mark.parametrize(
    ("result", "ended_as"),
    [
        (Result.SUCCEEDED, "committed"),
        (Result.ROLLED_BACK, "rolled back"),
        (Result.IN_DOUBT, "in doubt"),
        (None, "no slot, or given up"),
    ],
)
def test_an_end_is_named(log: UnitLog, result: Result | None, ended_as: str) -> None:
    log.unit_began().ended(result, None)
    assert [shown.ended_as for _, shown in log.shown()] == [ended_as]


def test_a_timeline_has_the_last_offsets_of_each_group_in_the_order_of_partitions(log: UnitLog) -> None:
    unit = log.unit_began()
    unit.offsets_added("g", {TopicPartition("t", 1): 5, TopicPartition("t", 0): 2}, False)
    unit.offsets_added("g", {TopicPartition("t", 0): 3}, False)
    unit.offsets_added("g", {TopicPartition("t", 0): 9}, True)
    unit.ended(Result.SUCCEEDED, None)
    ((_, shown),) = log.shown()
    assert shown.offsets == (
        TimelineOffsets("g", False, ((TopicPartition("t", 0), 3), (TopicPartition("t", 1), 5))),
        TimelineOffsets("g", True, ((TopicPartition("t", 0), 9),)),
    )
    assert shown.more_positions == 0


def test_of_many_partitions_some_offsets_are_kept_and_the_others_counted(log: UnitLog) -> None:
    unit = log.unit_began()
    unit.offsets_added("first", {TopicPartition("t", number): 1 for number in range(MOST_POSITIONS - 1)}, False)
    for group in ("second", "third"):
        unit.offsets_added(group, {TopicPartition("t", number): 1 for number in range(3)}, False)
    unit.ended(Result.SUCCEEDED, None)
    ((_, shown),) = log.shown()
    assert [(group.group_id, len(group.positions)) for group in shown.offsets] == [
        ("first", MOST_POSITIONS - 1),
        ("second", 1),
    ]
    assert shown.more_positions == 5


def test_the_newest_the_slowest_and_the_newest_that_failed_are_shown_once_each(log: UnitLog) -> None:
    assert log.shown() == []
    slow, failed, newest = timeline(9.0), timeline(0.2, "rolled back"), timeline(0.3)
    for each in (timeline(), slow, failed, newest):
        log.add(each)
    assert log.shown() == [
        ("the newest", newest),
        ("the slowest of the last 4", slow),
        ("the newest that was not committed", failed),
    ]
    log.add(timeline(10.0, "in doubt"))
    assert [why for why, _ in log.shown()] == ["the newest"]


def test_units_are_counted_in_the_second_in_which_they_end(log: UnitLog, clock: SteppedSeconds) -> None:
    log.add(timeline(0.1))
    log.add(timeline(0.2, "rolled back"))
    clock.now += 2
    log.add(timeline(0.3))
    clock.now += 1
    history = log.history(4)
    assert [(each.number, each.committed, each.others, each.durations) for each in history] == [
        (999, 0, 0, []),
        (1000, 1, 1, [0.1, 0.2]),
        (1001, 0, 0, []),
        (1002, 1, 0, [0.3]),
    ]


def test_the_second_that_has_not_ended_is_not_shown(log: UnitLog) -> None:
    log.add(timeline())
    assert [each.committed for each in log.history(3)] == [0, 0, 0]


def test_what_is_kept_is_bounded(log: UnitLog, clock: SteppedSeconds) -> None:
    for _ in range(MOST_SAMPLES + 100):
        log.add(timeline())
    for _ in range(SECONDS_KEPT + 50):
        clock.now += 1
        log.add(timeline())
    assert len(log.history(SECONDS_KEPT)) == SECONDS_KEPT
    assert sum(each.committed for each in log.history(10_000)) == SECONDS_KEPT - 1
    assert log.shown()[1:] == [] or f"the last {MOST_TIMELINES}" in log.shown()[1][0]


def test_of_a_busy_second_all_units_are_counted_and_some_are_sampled(log: UnitLog, clock: SteppedSeconds) -> None:
    for _ in range(MOST_SAMPLES + 100):
        log.add(timeline())
    clock.now += 1
    (second,) = log.history(1)
    assert (second.committed, len(second.durations)) == (MOST_SAMPLES + 100, MOST_SAMPLES)


@pytest.mark.parametrize(
    ("durations", "share", "value"),
    [
        ([], 0.5, None),
        ([3.0], 0.99, 3.0),
        ([4.0, 1.0, 3.0, 2.0], 0.5, 3.0),
        ([*map(float, range(100))], 0.99, 99.0),
    ],
)
def test_a_percentile_is_one_of_the_durations(durations: list[float], share: float, value: float | None) -> None:
    assert percentile(durations, share) == value


@pytest.mark.parametrize(
    ("value", "top"), [(0.0, 1.0), (1.0, 1.0), (1.1, 2.0), (3.0, 5.0), (7.0, 10.0), (0.03, 0.05), (1234.0, 2000.0)]
)
def test_a_plot_s_upper_edge_is_a_round_number(value: float, top: float) -> None:
    assert rounded_up(value) == pytest.approx(top)


def test_a_line_fills_the_box_and_breaks_at_gaps() -> None:
    drawn = plot("t", "u", [("a", [0.0, 1.0, None, 2.0, 1.0]), ("b", [None, None]), ("c", [])])
    assert drawn.top == "2"
    assert drawn.lines[0].paths == (
        f"0.0,{HEIGHT:.1f} {WIDTH / 4:.1f},{HEIGHT / 2:.1f}",
        f"{WIDTH * 3 / 4:.1f},0.0 {WIDTH:.1f},{HEIGHT / 2:.1f}",
    )
    assert [line.last for line in drawn.lines] == ["1", "none", "none"]
    assert [line.paths for line in drawn.lines[1:]] == [(), ()]


def test_rates_durations_and_recoveries_are_plotted() -> None:
    history = [SecondOfUnits(1, 3, 1, [0.001, 0.002, 0.004]), SecondOfUnits(2), SecondOfUnits(3, 2000)]
    rates, durations, recoveries = plots_of(history, [(1, 0), (1, 2)])
    assert [(line.name, line.last) for line in rates.lines] == [("committed", "2,000"), ("not committed", "0")]
    assert [(line.name, line.last) for line in durations.lines] == [("p50", "2"), ("p99", "4")]
    assert [(line.name, line.last) for line in recoveries.lines] == [("recoveries", "1"), ("replays", "2")]
    assert (rates.top, durations.top, recoveries.top) == ("2000", "5", "2")
