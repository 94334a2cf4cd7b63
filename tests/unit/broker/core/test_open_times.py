"""How long transactions have been open, while the wall clock jumps."""

from hypothesis import given
from hypothesis import strategies as st

from dualwrite.broker.core.open_times import OpenTimes
from dualwrite.broker.core.transactions import has_timed_out
from dualwrite.broker.facts.transactions import (
    NO_TIMEOUT,
    TransactionForgotten,
    TransactionRecorded,
    TransactionStatus,
    TransactionVersion,
)
from dualwrite.ids import NO_PRODUCER, ProducerIdentity, TopicPartition

NOW_MS = 1_000_000_000
PARTITIONS = frozenset({TopicPartition("t", 0)})
TIMES = st.integers(0, 2**45)
STATUSES = [status for status in TransactionStatus if status is not TransactionStatus.DEAD]


def recorded(
    status: TransactionStatus = TransactionStatus.ONGOING,
    started_ms: int = NOW_MS,
    timeout_ms: int = 60_000,
    name: str = "app",
) -> TransactionRecorded:
    return TransactionRecorded(
        name, ProducerIdentity(1, 1), status, timeout_ms, started_ms, PARTITIONS, started_ms,
        NO_PRODUCER, NO_PRODUCER, TransactionVersion.TV2,
    )  # fmt: skip


def test_a_transaction_is_open_from_its_first_fact_until_its_end() -> None:
    times = OpenTimes([], NOW_MS, 0)
    times.note(recorded(TransactionStatus.EMPTY), 5)
    assert times.open_ms("app", 9) == 0
    times.note(recorded(), 10)
    times.note(recorded(), 15)
    assert times.open_ms("app", 20) == 10
    assert times.open_ms("other", 20) == 0
    times.note(recorded(TransactionStatus.PREPARE_COMMIT), 30)
    assert times.open_ms("app", 40) == 0
    times.note(recorded(), 50)
    assert times.open_ms("app", 60) == 10
    times.note(TransactionForgotten("app"), 70)
    assert times.open_ms("app", 80) == 0


@given(st.sampled_from(STATUSES), TIMES, TIMES, st.integers(1, 900_000) | st.just(NO_TIMEOUT), TIMES, TIMES)
def test_after_a_restart_the_age_is_never_negative_nor_above_the_timeout(
    status: TransactionStatus, started_ms: int, wall_ms: int, timeout_ms: int, steady_ms: int, later_ms: int
) -> None:
    times = OpenTimes([recorded(status, started_ms, timeout_ms)], wall_ms, steady_ms)
    age = times.open_ms("app", steady_ms)
    assert 0 <= age <= timeout_ms
    if status is not TransactionStatus.ONGOING:
        assert age == 0
    elif 0 <= wall_ms - started_ms <= timeout_ms:
        assert age == wall_ms - started_ms
    if status is TransactionStatus.ONGOING:
        assert times.open_ms("app", steady_ms + later_ms) == age + later_ms


@given(
    st.lists(st.tuples(st.integers(0, 3_600_000), st.integers(-(2**41), 2**41)), max_size=20), st.integers(1, 900_000)
)
def test_jumps_of_the_wall_clock_change_nothing_in_one_run(steps: list[tuple[int, int]], timeout_ms: int) -> None:
    """However the wall clock jumps, a transaction times out exactly when its timeout has passed."""
    steady_ms, wall_ms = 5_000, NOW_MS
    times = OpenTimes([], wall_ms, steady_ms)
    begun_ms, fact = steady_ms, recorded(started_ms=wall_ms, timeout_ms=timeout_ms)
    times.note(fact, steady_ms)
    for passed_ms, jump_ms in steps:
        steady_ms, wall_ms = steady_ms + passed_ms, wall_ms + passed_ms + jump_ms
        assert has_timed_out(fact, times.open_ms("app", steady_ms)) == (steady_ms - begun_ms >= timeout_ms)


@given(TIMES, TIMES, st.lists(TIMES, max_size=10))
def test_a_transaction_of_two_phase_commit_never_times_out(started_ms: int, wall_ms: int, later: list[int]) -> None:
    fact = recorded(started_ms=started_ms, timeout_ms=NO_TIMEOUT)
    times = OpenTimes([fact], wall_ms, 0)
    assert not any(has_timed_out(fact, times.open_ms("app", steady_ms)) for steady_ms in later)
