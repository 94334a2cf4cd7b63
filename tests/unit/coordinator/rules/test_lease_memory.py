"""What a process concludes from its state row: a table of what it remembers and what the row shows."""

from dataclasses import replace

import pytest

from dualwrite.coordinator.rules.lease import Lease, LeaseContradictedError, LeaseLostError, require_row
from dualwrite.coordinator.rules.lease_memory import REMEMBERED_STATES, LeaseMemory, RowFinding, RowSeen
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.ids import Anchor, PreparedTxnState, ProducerIdentity, TopicPartition

TOKEN = 7
NOTHING = PreparedTxnState()


def state(epoch: int) -> PreparedTxnState:
    return PreparedTxnState(ProducerIdentity(42, epoch))


def anchored(offset: int) -> PreparedTxnState:
    return PreparedTxnState(ProducerIdentity(42, 1), Anchor.of(TopicPartition("events", 0), offset))


def memory_of(*states: PreparedTxnState, version: int = 100) -> LeaseMemory:
    """Of a process that read the first of ``states`` and has committed the others."""
    memory = LeaseMemory()
    memory.renewed(version)
    memory.read(states[0])
    for later in states[1:]:
        memory.writes(later)
        memory.committed()
        memory.completed()
    return memory


def row(shown: PreparedTxnState, token: int = TOKEN, version: int | None = 100) -> RowSeen:
    return RowSeen(token, version, shown)


CASES = [
    ("the row is as it was left", row(state(3)), None),
    ("a higher token", row(state(3), TOKEN + 1), RowFinding.TAKEN_OVER),
    ("a higher token with a later state", row(state(9), TOKEN + 1), RowFinding.TAKEN_OVER),
    ("a lower token: the lease itself is forgotten", row(state(3), TOKEN - 1), RowFinding.ROLLED_BACK),
    ("the state before the last", row(state(2)), RowFinding.ROLLED_BACK),
    ("the state that the process began with", row(state(1)), RowFinding.ROLLED_BACK),
    ("a state of nobody here", row(state(9)), RowFinding.COPIED),
    ("no state", row(NOTHING), RowFinding.ROLLED_BACK),
    ("an older state than any that is remembered", row(state(0)), RowFinding.ROLLED_BACK),
    ("a state of another producer id", row(PreparedTxnState("41:0")), RowFinding.COPIED),
    ("a version of nobody here", row(state(3), version=5), RowFinding.COPIED),
    ("no version", row(state(3), version=None), RowFinding.COPIED),
    ("no row", None, RowFinding.ROW_GONE),
]


@pytest.mark.parametrize(("shown", "finding"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_a_row_is_compared_with_what_the_process_remembers(shown: RowSeen | None, finding: RowFinding | None) -> None:
    assert memory_of(state(1), state(2), state(3)).finding(shown, TOKEN) is finding


def test_librdkafka_states_differ_by_their_anchors_alone() -> None:
    memory = memory_of(anchored(10), anchored(20))
    assert memory.finding(row(anchored(20)), TOKEN) is None
    assert memory.finding(row(anchored(10)), TOKEN) is RowFinding.ROLLED_BACK
    assert memory.finding(row(anchored(5)), TOKEN) is RowFinding.ROLLED_BACK, "older than all, by its offset"
    assert memory.finding(row(anchored(30)), TOKEN) is RowFinding.COPIED
    elsewhere = PreparedTxnState(ProducerIdentity(42, 1), Anchor.of(TopicPartition("events", 1), 5))
    assert memory.finding(row(elsewhere), TOKEN) is RowFinding.COPIED, "another partition's offsets say nothing"
    assert memory.finding(row(state(1)), TOKEN) is RowFinding.COPIED, "without an anchor nothing is known"
    assert memory_of(state(1)).finding(row(anchored(5)), TOKEN) is RowFinding.COPIED


def test_a_transaction_whose_end_is_unknown_may_have_either_state() -> None:
    memory = memory_of(state(1), state(2))
    memory.writes(state(3))
    assert [memory.finding(row(state(epoch)), TOKEN) for epoch in (2, 3)] == [None, None]
    assert memory.finding(row(state(1)), TOKEN) is RowFinding.ROLLED_BACK
    memory.rolled_back()
    assert memory.pending is None
    assert memory.finding(row(state(3)), TOKEN) is RowFinding.COPIED


def test_a_state_that_the_locked_row_does_not_hold_is_doubtful_until_the_next_one_is_written() -> None:
    memory = memory_of(state(1), state(2))
    memory.writes(state(3))
    memory.found(state(2))
    assert (memory.pending, memory.doubtful) == (None, state(3))
    assert memory.finding(row(state(3)), TOKEN) is RowFinding.COPIED
    memory.rolled_back()
    assert memory.doubtful == state(3), "the end in the database says nothing about Kafka"
    memory.writes(state(4))
    assert memory.doubtful is None


def test_a_pending_state_that_the_locked_row_holds_is_decided() -> None:
    memory = memory_of(state(1))
    memory.writes(state(2))
    memory.found(state(2))
    assert (memory.state, memory.pending, memory.doubtful) == (state(2), None, None)
    assert memory.uncompleted == state(2)


def test_a_state_of_another_time_in_the_locked_row_leaves_the_pending_one_doubtful() -> None:
    ours, others = replace(anchored(5), started_ms=1000), replace(anchored(5), started_ms=2000)
    memory = memory_of(state(1))
    memory.writes(ours)
    memory.found(others)
    assert (memory.state, memory.pending) == (state(1), None)
    assert memory.doubtful is not None
    assert memory.doubtful.is_same_as(ours)


def test_what_the_locked_row_holds_at_first_is_what_the_process_begins_with() -> None:
    memory = LeaseMemory()
    memory.found(state(1))
    assert (memory.state, memory.uncompleted) == (state(1), state(1))


def test_a_renewal_whose_end_is_unknown_may_have_either_version() -> None:
    memory = memory_of(state(1), version=100)
    memory.renews(100, 101)
    assert [memory.finding(row(state(1), version=version), TOKEN) for version in (100, 101)] == [None, None]
    memory.renews(100, 102)  # it had not happened
    assert memory.finding(row(state(1), version=100), TOKEN) is None
    assert memory.finding(row(state(1), version=101), TOKEN) is RowFinding.ROLLED_BACK, "or it had, and was lost"
    memory.renewed(102)
    assert memory.finding(row(state(1), version=100), TOKEN) is RowFinding.ROLLED_BACK, "a renewal is forgotten"
    assert memory.finding(row(state(1), version=999), TOKEN) is RowFinding.COPIED


def test_of_two_renewals_at_once_the_one_that_locked_the_row_last_is_remembered() -> None:
    """The heartbeat's, and that of a unit of work that gets the slot: each notes its end after its transaction."""
    memory = memory_of(state(1), version=100)
    memory.renews(100, 101)
    memory.renews(101, 102)  # the first is committed, and has not noted it
    memory.renewed(101)
    assert memory.finding(row(state(1), version=102), TOKEN) is None
    memory.renewed(102)
    expected = {100: RowFinding.ROLLED_BACK, 101: RowFinding.ROLLED_BACK, 102: None, 999: RowFinding.COPIED}
    assert {version: memory.finding(row(state(1), version=version), TOKEN) for version in expected} == expected
    memory.renewed(101)
    assert memory.finding(row(state(1), version=102), TOKEN) is None


def test_units_of_work_that_commit_while_the_heartbeat_reads_are_not_forgotten() -> None:
    memory = memory_of(state(1), state(2))
    mark = memory.since()
    for epoch in (3, 4, 5):
        memory.writes(state(epoch))
        memory.committed()
    assert [memory.finding(row(state(epoch)), TOKEN, mark) for epoch in (2, 3, 4, 5)] == [None] * 4
    assert memory.finding(row(state(1)), TOKEN, mark) is RowFinding.ROLLED_BACK
    assert memory.finding(row(state(4)), TOKEN) is RowFinding.ROLLED_BACK, "without the mark it would be"


def test_the_first_unit_of_work_after_recovery_may_commit_while_the_heartbeat_reads() -> None:
    memory = memory_of(state(1))
    mark = memory.since()
    memory.writes(state(2))
    memory.committed()
    assert [memory.finding(row(state(epoch)), TOKEN, mark) for epoch in (1, 2)] == [None, None]


def test_a_lease_that_was_never_read_expects_nothing_of_the_state() -> None:
    memory = LeaseMemory()
    assert memory.finding(row(state(9)), TOKEN) is None
    assert memory.finding(row(state(9), TOKEN + 1), TOKEN) is RowFinding.TAKEN_OVER


def unmatched(memory: LeaseMemory, shown: RowSeen | None) -> list[tuple[str, Outcome]]:
    finding = memory.finding(shown, TOKEN)
    assert finding is not None
    return [(str(unit.state), unit.outcome) for unit in memory.unmatched(finding, shown)]


def test_every_unit_of_work_after_the_one_that_the_row_names_is_named() -> None:
    memory = memory_of(NOTHING, state(1), state(2), state(3))
    commit = Outcome.HEURISTIC_COMMIT
    assert unmatched(memory, row(state(1))) == [("42:2", commit), ("42:3", commit)]
    assert unmatched(memory, row(NOTHING)) == [("42:1", commit), ("42:2", commit), ("42:3", commit)]
    assert unmatched(memory, row(state(2), TOKEN - 1)) == [("42:3", commit)]


def test_a_forgotten_lease_without_a_forgotten_unit_reports_no_outcome() -> None:
    assert unmatched(memory_of(state(1)), row(state(1), TOKEN - 1)) == []
    assert unmatched(memory_of(state(1)), row(state(0))) == [("42:1", Outcome.HEURISTIC_HAZARD)], "this one is lost"


def test_the_last_unit_of_work_is_named_when_the_row_is_gone_or_unknown() -> None:
    memory = memory_of(state(1), state(2))
    assert unmatched(memory, None) == [("42:2", Outcome.HEURISTIC_COMMIT)]
    assert unmatched(memory, row(state(9), TOKEN - 1)) == [("42:2", Outcome.HEURISTIC_COMMIT)]
    assert unmatched(memory_of(NOTHING), None) == []


def test_every_unit_of_work_is_named_when_the_row_is_gone_and_all_are_known() -> None:
    memory = memory_of(NOTHING, state(1), state(2))
    memory.writes(state(3))
    memory.committed()
    assert unmatched(memory, None) == [
        ("42:1", Outcome.HEURISTIC_COMMIT),
        ("42:2", Outcome.HEURISTIC_COMMIT),
        ("42:3", Outcome.HEURISTIC_HAZARD),
    ]
    assert "each of the slot's units of work is on record" in memory.unmatched(RowFinding.ROW_GONE, None)[0].detail


def test_the_last_unit_of_work_speaks_for_all_when_some_were_dropped() -> None:
    everything = [NOTHING, *(state(epoch) for epoch in range(REMEMBERED_STATES - 1))]
    assert len(unmatched(memory_of(*everything), None)) == REMEMBERED_STATES - 1
    one_more = unmatched(memory_of(*everything, state(REMEMBERED_STATES)), None)
    assert one_more == [(f"42:{REMEMBERED_STATES}", Outcome.HEURISTIC_COMMIT)]


def test_a_state_that_was_read_and_not_yet_recovered_is_a_hazard() -> None:
    """Whether Kafka has committed it is what recovery would have found out."""
    memory = memory_of(state(1))
    assert unmatched(memory, None) == [("42:1", Outcome.HEURISTIC_HAZARD)]
    memory.completed()
    assert (memory.pending, memory.uncompleted) == (None, None)
    assert unmatched(memory, None) == [("42:1", Outcome.HEURISTIC_COMMIT)]


def test_each_outcome_on_record_says_what_is_known_of_both_sides() -> None:
    memory = memory_of(state(1), state(2))
    memory.writes(state(3))
    memory.committed()
    forgotten = [unit.detail for unit in memory.unmatched(RowFinding.ROLLED_BACK, row(state(1)))]
    assert [detail.partition(". ")[0] for detail in forgotten] == [
        "Kafka has committed it",
        "It is not known whether Kafka has committed it",
    ]
    assert all("has forgotten it: a standby that lagged was promoted" in detail for detail in forgotten)
    (gone,) = memory.unmatched(RowFinding.ROW_GONE, None)
    assert "Its row of the state table is gone" in gone.detail
    assert "and so may those of earlier units of work" in gone.detail
    (unknown,) = memory.unmatched(RowFinding.ROLLED_BACK, row(state(9), TOKEN - 1))
    assert "The state row holds an older state that this process does not know" in unknown.detail


def test_a_unit_of_work_that_kafka_may_not_have_committed_yet_is_a_hazard() -> None:
    memory = memory_of(state(1), state(2))
    memory.writes(state(3))
    memory.committed()
    assert unmatched(memory, row(state(1))) == [
        ("42:2", Outcome.HEURISTIC_COMMIT),
        ("42:3", Outcome.HEURISTIC_HAZARD),
    ]


def test_copies_that_shared_a_kafka_transaction_are_named() -> None:
    memory = memory_of(state(1))
    memory.writes(state(2))
    assert unmatched(memory, row(state(5))) == [("42:5", Outcome.HEURISTIC_HAZARD), ("42:2", Outcome.HEURISTIC_HAZARD)]
    assert unmatched(memory, row(state(1), version=5)) == [("42:2", Outcome.HEURISTIC_HAZARD)]
    details = {unit.detail for unit in memory.unmatched(RowFinding.COPIED, row(state(5)))}
    assert ["may hold records of either" in detail for detail in details] == [True]


def test_the_number_of_remembered_states_is_bounded() -> None:
    memory = memory_of(*(state(epoch) for epoch in range(2 * REMEMBERED_STATES)))
    first, last = REMEMBERED_STATES, 2 * REMEMBERED_STATES - 1
    assert len(unmatched(memory, row(state(first)))) == REMEMBERED_STATES - 1
    assert memory.finding(row(state(last)), TOKEN) is None
    assert len(unmatched(memory, row(state(first - 1)))) == REMEMBERED_STATES, "older than all: they are all lost"


def test_a_lost_copied_or_restored_row_is_refused_with_its_reason() -> None:
    lease = Lease("orders-0", TOKEN, memory_of(state(1), state(2)))
    require_row(lease, row(state(2)))
    with pytest.raises(LeaseLostError, match="another process has taken over 'orders-0'") as taken:
        require_row(lease, row(state(2), TOKEN + 1))
    assert taken.value.lease is lease
    for shown, finding, message, on_record in (
        (row(state(1)), RowFinding.ROLLED_BACK, "has lost what it had committed", ["42:2"]),
        (None, RowFinding.ROW_GONE, "it is gone", ["42:2"]),
        (row(state(9)), RowFinding.COPIED, "another copy of this process", ["42:9"]),
        (row(state(2), version=5), RowFinding.COPIED, "another copy of this process", []),
    ):
        with pytest.raises(LeaseContradictedError, match=message) as raised:
            require_row(lease, shown)
        assert raised.value.retriable
        assert (raised.value.lease, raised.value.finding, raised.value.row) == (lease, finding, shown)
        assert [str(unit.state) for unit in raised.value.unmatched] == on_record
        end = ". What is in Kafka alone is on record" if on_record else ""
        assert str(raised.value).endswith(f"this unit of work is rolled back and may be run again{end}")


def test_only_a_row_of_the_lease_itself_may_be_corrected() -> None:
    lease = Lease("orders-0", TOKEN, memory_of(state(1), state(2)))
    for shown, corrected in (
        (row(state(1)), row(state(1))),
        (row(state(1), TOKEN - 1), None),
        (None, None),
    ):
        with pytest.raises(LeaseContradictedError) as raised:
            require_row(lease, shown)
        assert raised.value.unmatched
        assert raised.value.outdated_row == corrected


def test_a_row_that_was_read_before_the_unit_of_work_went_on_is_accepted_with_its_mark() -> None:
    memory = memory_of(state(1), state(2))
    lease, mark = Lease("orders-0", TOKEN, memory), memory.since()
    memory.writes(state(3))
    memory.committed()
    require_row(lease, row(state(2)), mark)
    with pytest.raises(LeaseContradictedError):
        require_row(lease, row(state(2)))


def test_two_leases_are_the_same_whatever_they_remember() -> None:
    assert Lease("a-0", 1, memory_of(state(1))) == Lease("a-0", 1)
    assert {Lease("a-0", 1, memory_of(state(1)))} == {Lease("a-0", 1)}
