"""What the tables of every command leave out: the order of checks, retries, time, and what is kept of a transaction."""

from dataclasses import replace

import pytest

from dualwrite.broker.core.commands import Command, Decision, Expire, InitProducerId, MarkersWritten, Reply, TimeOut
from dualwrite.broker.core.transaction_rules import TransactionSettings, asks_for_two_phase_commit, markers_of
from dualwrite.broker.facts.transaction_log import decode_fact, encode_fact
from dualwrite.broker.facts.transactions import (
    NO_TIMEOUT,
    TransactionForgotten,
    TransactionRecorded,
    TransactionStatus,
    TransactionVersion,
)
from dualwrite.ids import LIBRDKAFKA_TWO_PHASE_TIMEOUT_MS, NO_PRODUCER, TWO_PHASE_TIMEOUTS_MS, ProducerIdentity
from dualwrite.records.control import Marker
from dualwrite.wire.error_codes import ErrorCode
from tests.support.broker.transactions import (
    ABORT,
    C4,
    C5,
    C6,
    C7,
    COMMIT,
    MAX,
    P0,
    P1,
    SITUATIONS,
    START_MS,
    TIMEOUT_MS,
    TV1,
    TV2,
    TXN_ID,
    CoordinatorWorld,
    add,
    end,
    init,
    recorded,
    verify,
    who,
)

EXPIRATION_MS = TransactionSettings().id_expiration_ms
WITHOUT_2PC = TransactionSettings(two_phase_commit_enable=False)


def refusal(decision: Decision) -> ErrorCode:
    assert decision.reply is not None
    assert not decision.facts
    assert not decision.effects
    return decision.reply.error


def ongoing(timeout_ms: int = TIMEOUT_MS, producer: ProducerIdentity = C5) -> TransactionRecorded:
    return recorded(TransactionStatus.ONGOING, producer, timeout_ms, frozenset({P0}), START_MS)


# --- InitProducerId: the order of its checks is Apache Kafka's


def test_an_empty_transactional_id_is_an_invalid_request_before_anything_else() -> None:
    command = InitProducerId("", timeout_ms=-5, enable_2pc=True)
    assert refusal(CoordinatorWorld(settings=WITHOUT_2PC).decide(command)) is ErrorCode.INVALID_REQUEST


def test_a_transactional_id_that_the_log_has_no_room_for_is_an_invalid_request() -> None:
    world = CoordinatorWorld()
    assert refusal(world.decide(InitProducerId("é" * 16384, TIMEOUT_MS))) is ErrorCode.INVALID_REQUEST
    assert world.execute(InitProducerId("é" * 16383 + "e", TIMEOUT_MS)).error is ErrorCode.NONE


@pytest.mark.parametrize("timeout_ms", [-5, 60_000, NO_TIMEOUT])
def test_two_phase_commit_that_is_switched_off_is_refused_before_the_timeout_is_looked_at(timeout_ms: int) -> None:
    world = CoordinatorWorld(settings=WITHOUT_2PC)
    refused = refusal(world.decide(init(two_phase=True, timeout_ms=timeout_ms)))
    assert refused is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


@pytest.mark.parametrize("timeout_ms", TWO_PHASE_TIMEOUTS_MS)
def test_where_two_phase_commit_is_off_its_timeouts_are_timeouts_like_others(timeout_ms: int) -> None:
    world = CoordinatorWorld(settings=WITHOUT_2PC)
    assert refusal(world.decide(init(timeout_ms=timeout_ms))) is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    allowing = CoordinatorWorld(settings=replace(WITHOUT_2PC, max_timeout_ms=timeout_ms))
    assert allowing.execute(init(timeout_ms=timeout_ms)).error is ErrorCode.NONE
    assert allowing.entry.timeout_ms == timeout_ms


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("timeout_ms", [60_000, *TWO_PHASE_TIMEOUTS_MS])
def test_the_flag_asks_for_two_phase_commit_everywhere_and_a_timeout_where_it_is_on(
    enabled: bool, timeout_ms: int
) -> None:
    settings = TransactionSettings(two_phase_commit_enable=enabled)
    assert asks_for_two_phase_commit(True, timeout_ms, settings)
    assert asks_for_two_phase_commit(False, timeout_ms, settings) is (enabled and timeout_ms != 60_000)


@pytest.mark.parametrize("timeout_ms", [0, -1, -(2**31), 900_001, NO_TIMEOUT - 1])
def test_a_timeout_out_of_range_is_refused_before_the_identity_is_looked_at(timeout_ms: int) -> None:
    for situation in SITUATIONS.values():
        decision = situation().decide(init(timeout_ms=timeout_ms, expected=who(7, 0)))
        assert refusal(decision) is ErrorCode.INVALID_TRANSACTION_TIMEOUT


@pytest.mark.parametrize("timeout_ms", [1, 900_000])
def test_a_timeout_in_range_is_stored(timeout_ms: int) -> None:
    world = CoordinatorWorld()
    assert world.execute(init(timeout_ms=timeout_ms)).error is ErrorCode.NONE
    assert world.entry.timeout_ms == timeout_ms


@pytest.mark.parametrize("timeout_ms", [-1, 0, 1, 900_001, NO_TIMEOUT])
def test_with_two_phase_commit_the_timeout_is_ignored_and_stored_as_none(timeout_ms: int) -> None:
    world = CoordinatorWorld()
    assert world.execute(init(two_phase=True, timeout_ms=timeout_ms)).error is ErrorCode.NONE
    assert world.entry.timeout_ms == NO_TIMEOUT


def test_a_timeout_of_int_max_asks_for_two_phase_commit() -> None:
    world = CoordinatorWorld()
    world.execute(init(timeout_ms=NO_TIMEOUT))
    assert world.entry.timeout_ms == NO_TIMEOUT


def test_librdkafkas_timeout_of_two_phase_commit_aborts_no_open_transaction() -> None:
    world = CoordinatorWorld().begin_at(ongoing(NO_TIMEOUT))
    command = init(timeout_ms=LIBRDKAFKA_TWO_PHASE_TIMEOUT_MS)
    assert refusal(world.decide(command)) is ErrorCode.PRODUCER_FENCED
    world.execute(init(keep=True))
    assert refusal(world.decide(command)) is ErrorCode.PRODUCER_FENCED, "a kept one neither"
    assert world.entry.timeout_ms == NO_TIMEOUT


def test_librdkafkas_timeout_begins_a_session_where_nothing_is_open() -> None:
    world = CoordinatorWorld(42)
    first = world.execute(init(timeout_ms=LIBRDKAFKA_TWO_PHASE_TIMEOUT_MS)).producer
    assert world.execute(init(timeout_ms=LIBRDKAFKA_TWO_PHASE_TIMEOUT_MS)).producer == who(42, first.epoch + 1)


@pytest.mark.parametrize(
    "command",
    [
        init(timeout_ms=NO_TIMEOUT),
        init(timeout_ms=LIBRDKAFKA_TWO_PHASE_TIMEOUT_MS, expected=C5),
    ],
)
def test_every_other_init_aborts_the_open_transaction(command: InitProducerId) -> None:
    world = CoordinatorWorld().begin_at(ongoing(NO_TIMEOUT))
    decision = world.decide(command)
    assert decision.reply is None
    assert decision.facts


def test_a_decided_transaction_blocks_inits_before_the_expected_identity_is_checked() -> None:
    decision = SITUATIONS["prepare-commit-2"]().decide(init(expected=who(7, 0)))
    assert refusal(decision) is ErrorCode.CONCURRENT_TRANSACTIONS


def test_an_unknown_id_gets_a_fresh_producer_id_regardless_of_the_expected_identity() -> None:
    """KIP-360: the coordinator may have forgotten the transactional id; the client has not."""
    assert CoordinatorWorld(42).execute(init(expected=who(7, 3))).producer == who(42, 0)


# --- keepPreparedTxn


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("settings", [None, WITHOUT_2PC])
def test_keeping_with_an_expected_identity_is_an_invalid_request(
    situation: str, settings: TransactionSettings | None
) -> None:
    """apache/kafka#21735: a process that recovers has no identity; one that has an identity has not died."""
    world = SITUATIONS[situation]()
    world.settings = settings or world.settings
    for command in (init(keep=True, expected=C5), init(keep=True, expected=C5, two_phase=True, timeout_ms=-5)):
        assert refusal(world.decide(command)) is ErrorCode.INVALID_REQUEST


def test_no_setting_lets_a_record_join_a_kept_transaction() -> None:
    """Neither its former owner's, who does not know that the transaction was kept, nor the new owner's."""
    world = CoordinatorWorld(settings=TransactionSettings(partition_verification_enable=False)).begin_at(
        ongoing(NO_TIMEOUT)
    )
    assert world.execute(verify(C5)).error is ErrorCode.NONE
    assert world.execute(verify(who(7, 0), P1)).error is ErrorCode.NONE, "as in Kafka, nothing is verified"
    world.execute(init(keep=True))
    assert refusal(world.decide(verify(C5))) is ErrorCode.PRODUCER_FENCED
    assert refusal(world.decide(verify(C6))) is ErrorCode.TRANSACTION_ABORTABLE


@pytest.mark.parametrize("two_phase", [False, True])
def test_a_prepared_transaction_is_kept_with_and_without_two_phase_commit(two_phase: bool) -> None:
    """Flink keeps transactions on clusters that grant it no two-phase commit (KIP-939)."""
    world = SITUATIONS["ongoing"]()
    before = world.entry

    reply = world.execute(init(keep=True, two_phase=two_phase))

    assert reply == Reply(producer=C6, ongoing=C5)
    assert world.entry.producer == before.producer
    assert world.entry.partitions == before.partitions
    assert world.entry.started_ms == before.started_ms


def test_a_transaction_is_kept_where_two_phase_commit_is_switched_off() -> None:
    world = CoordinatorWorld(settings=WITHOUT_2PC).begin_at(ongoing(NO_TIMEOUT))
    assert world.execute(init(keep=True)) == Reply(producer=C6, ongoing=C5)


@pytest.mark.parametrize("situation", ["empty", "committed-1", "committed-2", "aborted-2", "fenced"])
def test_keeping_with_nothing_ongoing_is_a_plain_session(situation: str) -> None:
    world = SITUATIONS[situation]()
    before = world.entry.client

    reply = world.execute(init(keep=True))

    assert reply == Reply(producer=who(42, before.epoch + 1), ongoing=NO_PRODUCER)
    assert world.entry.status is TransactionStatus.EMPTY


@pytest.mark.parametrize(
    ("stored_ms", "asked_ms", "kept_ms"),
    [
        (NO_TIMEOUT, TIMEOUT_MS, NO_TIMEOUT),
        (TIMEOUT_MS, 1, TIMEOUT_MS),
        (TIMEOUT_MS, TIMEOUT_MS + 1, TIMEOUT_MS + 1),
        (TIMEOUT_MS, NO_TIMEOUT, NO_TIMEOUT),
    ],
)
def test_the_timeout_of_a_kept_transaction_never_shrinks(stored_ms: int, asked_ms: int, kept_ms: int) -> None:
    world = CoordinatorWorld().begin_at(ongoing(stored_ms))
    world.execute(init(keep=True, timeout_ms=asked_ms))
    assert world.entry.timeout_ms == kept_ms


@pytest.mark.parametrize(
    ("stored_ms", "asked_ms", "later_ms"),
    [(NO_TIMEOUT, 60_000, 60_000), (90_000, 60_000, 60_000), (60_000, NO_TIMEOUT, NO_TIMEOUT), (50, 50, 50)],
)
@pytest.mark.parametrize("version", [TV1, TV2])
def test_the_transactions_after_a_kept_one_have_the_timeout_that_its_client_asked_for(
    version: TransactionVersion, stored_ms: int, asked_ms: int, later_ms: int
) -> None:
    """KIP-939: that the transaction never expires belongs to the transaction; its heir may be no participant."""
    world = CoordinatorWorld(100).begin_at(ongoing(timeout_ms=stored_ms))
    client = world.execute(init(keep=True, timeout_ms=asked_ms)).producer
    client = world.execute(end(client, COMMIT, version)).producer
    assert (world.entry.timeout_ms, world.entry.next_timeout_ms) == (later_ms, -1)
    world.execute(add(client))
    assert world.entry.timeout_ms == later_ms


def test_the_last_recovery_determines_the_later_timeout() -> None:
    world = CoordinatorWorld(100).begin_at(ongoing(timeout_ms=NO_TIMEOUT))
    world.execute(init(keep=True, timeout_ms=60_000))
    client = world.execute(init(keep=True, two_phase=True)).producer
    assert world.entry.next_timeout_ms == -1
    world.execute(end(client))
    assert world.entry.timeout_ms == NO_TIMEOUT


def test_each_recovery_fences_the_one_before_and_keeps_the_transaction() -> None:
    """KIP-939, "Skip Epoch Bump When KeepPreparedTxn=true": with one identity for both, both would commit."""
    world = SITUATIONS["ongoing"]()
    first, second = world.execute(init(keep=True)), world.execute(init(keep=True))

    assert (first.ongoing, second.ongoing) == (C5, C5)
    assert refusal(world.decide(end(first.producer))) is ErrorCode.PRODUCER_FENCED
    assert world.execute(end(second.producer)) == Reply(producer=who(42, 8))


def test_a_kept_transaction_takes_no_more_partitions() -> None:
    world = SITUATIONS["kept"]()
    assert refusal(world.decide(add(C6, P1))) is ErrorCode.INVALID_TXN_STATE


def test_a_plain_session_aborts_a_prepared_transaction() -> None:
    """forceTerminateTransaction is nothing but that."""
    world = SITUATIONS["kept"]()

    decision = world.step(init())

    assert decision.reply is None
    assert decision.effects == (markers_of(world.entry),)
    assert world.entry.status is TransactionStatus.PREPARE_ABORT
    world.step(MarkersWritten(TXN_ID))
    assert world.step(init()).reply == Reply(producer=who(42, 8))


# --- KIP-360: a client names the identity that it expects to have


@pytest.mark.parametrize("version", [TV1, TV2])
@pytest.mark.parametrize("result", [COMMIT, ABORT])
def test_a_client_that_ended_its_transaction_is_bumped_when_it_asks(
    result: Marker, version: TransactionVersion
) -> None:
    """A client bumps its epoch after an error, and starts its sequences anew: under the old epoch they would clash."""
    world = SITUATIONS["ongoing"]()
    world.execute(end(C5, result, version))
    before = world.entry.client

    assert world.execute(init(expected=before)).producer == who(42, before.epoch + 1)


def test_a_repeated_bump_is_answered_as_the_first_one() -> None:
    world = SITUATIONS["empty"]()
    assert world.execute(init(expected=C5)).producer == C6
    retry = world.step(init(expected=C5))
    assert retry == Decision(Reply(producer=C6))
    assert world.execute(init(expected=C6)).producer == C7


def test_a_bump_cannot_be_repeated_once_a_transaction_has_begun() -> None:
    world = SITUATIONS["empty"]()
    world.execute(init(expected=C5))
    world.execute(add(C6))
    assert refusal(world.decide(init(expected=C5))) is ErrorCode.PRODUCER_FENCED


def test_a_bump_is_not_answered_to_the_old_client_once_another_has_taken_over() -> None:
    world = SITUATIONS["empty"]()
    world.execute(init(expected=C5))
    world.execute(init())
    for expected in (C5, C6):
        assert refusal(world.decide(init(expected=expected))) is ErrorCode.PRODUCER_FENCED


def test_a_living_client_that_bumps_in_the_middle_of_a_transaction_aborts_it_and_lives_on() -> None:
    world = SITUATIONS["ongoing"]()

    assert world.execute(init(expected=C5)) == Reply(producer=C6)

    assert world.entry.status is TransactionStatus.EMPTY
    assert world.decide(init(expected=C5)) == Decision(Reply(producer=C6)), "its retry is answered alike"
    assert refusal(world.decide(end(C5, COMMIT))) is ErrorCode.PRODUCER_FENCED
    assert world.execute(add(C6)).error is ErrorCode.NONE


def test_a_fenced_client_cannot_abort_its_successors_transaction() -> None:
    world = SITUATIONS["ongoing"]()
    for expected in (C4, C6, who(7, 0)):
        assert refusal(world.decide(init(expected=expected))) is ErrorCode.PRODUCER_FENCED


# --- epochs run out


def test_no_transaction_begins_at_the_last_epoch() -> None:
    """It is kept for markers: those of a transaction at 32767 would have no epoch to fence with."""
    world = CoordinatorWorld(85).begin_at(recorded(producer=who(42, MAX - 1)))
    assert world.execute(init()).producer == who(85, 0)


def test_a_session_that_uses_one_epoch_outlives_the_last_but_one() -> None:
    """Under TV1 nothing is bumped, so nothing overflows until the client is replaced."""
    world = CoordinatorWorld(85).begin_at(recorded(producer=who(42, MAX - 1)))
    for _ in range(3):
        assert world.execute(add(who(42, MAX - 1))).error is ErrorCode.NONE
        assert world.execute(end(who(42, MAX - 1), COMMIT, TV1)).producer == who(42, MAX - 1)
    assert world.execute(init()).producer == who(85, 0)


def test_a_recovered_client_at_the_last_epoch_ends_its_transaction_and_begins_no_other() -> None:
    world = CoordinatorWorld(73).begin_at(ongoing(producer=who(42, MAX - 2)))
    assert world.execute(init(keep=True)).producer == who(42, MAX - 1)
    assert world.execute(init(keep=True)).producer == who(42, MAX)
    assert world.execute(end(who(42, MAX), COMMIT, TV1)).producer == who(42, MAX)

    assert refusal(world.decide(add(who(42, MAX)))) is ErrorCode.PRODUCER_FENCED
    assert world.execute(end(who(42, MAX), COMMIT, TV1)).producer == who(42, MAX), "its retry is still known"
    assert world.execute(init(expected=who(42, MAX))).producer == who(73, 0)


def test_fencing_at_the_last_but_one_epoch_takes_a_fresh_id() -> None:
    world = CoordinatorWorld(85).begin_at(ongoing(producer=who(42, MAX - 1)))

    (effect,) = world.step(init()).effects
    assert effect.producer == who(42, MAX)
    world.step(MarkersWritten(TXN_ID))

    assert world.execute(init()).producer == who(85, 1)


def test_a_late_end_after_a_timeout_at_the_last_but_one_epoch_changes_nothing() -> None:
    """KAFKA-20090: the abort takes a fresh producer id, and the late EndTxn must not end what that id begins."""
    old = who(42, MAX - 1)
    world = CoordinatorWorld(85).begin_at(ongoing(producer=old))
    world.now_ms += TIMEOUT_MS
    world.execute(TimeOut(TXN_ID))
    assert world.entry.client == who(85, 0)
    for each in (world, restarted(world)):
        for result in (COMMIT, ABORT):
            assert refusal(each.decide(end(old, result, TV1))) is ErrorCode.PRODUCER_FENCED
        assert refusal(each.decide(end(old, COMMIT))) is ErrorCode.INVALID_TXN_STATE
        assert each.decide(end(old, ABORT)) == Decision(Reply(producer=who(85, 0)))
    client = world.execute(init()).producer
    for _ in range(2):
        for result in (COMMIT, ABORT):
            assert refusal(world.decide(end(old, result))) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        world.execute(add(client))
    assert world.execute(end(client, COMMIT)).error is ErrorCode.NONE


def restarted(world: CoordinatorWorld) -> CoordinatorWorld:
    """The coordinator after a restart: it has what its log has."""
    fact = decode_fact(*encode_fact(world.entry))
    assert isinstance(fact, TransactionRecorded)
    return CoordinatorWorld(1000, settings=world.settings).begin_at(fact)


def test_a_retry_over_an_overflow_is_known_after_a_restart() -> None:
    """KAFKA-20310 and KAFKA-20357: the log keeps the former identity, epoch included."""
    old = who(42, MAX - 1)
    renewed = CoordinatorWorld(85).begin_at(recorded(producer=old))
    assert renewed.execute(init(expected=old)).producer == who(85, 0)
    assert restarted(renewed).decide(init(expected=old)) == Decision(Reply(producer=who(85, 0)))
    ended = CoordinatorWorld(85).begin_at(ongoing(producer=old))
    assert ended.execute(end(old, COMMIT)) == Reply(producer=who(85, 0))
    assert restarted(ended).decide(end(old, COMMIT)) == Decision(Reply(producer=who(85, 0)))


def test_after_a_restart_a_decision_at_an_overflow_continues_with_the_fresh_id() -> None:
    """KAFKA-20310: the log keeps the next identity."""
    old = who(42, MAX - 1)
    world = CoordinatorWorld(85).begin_at(ongoing(producer=old))
    world.step(end(old, COMMIT))
    after = restarted(world)
    after.step(MarkersWritten(TXN_ID))
    assert after.entry.client == who(85, 0)
    assert after.execute(add(who(85, 0))).error is ErrorCode.NONE


# --- retries of EndTxn


@pytest.mark.parametrize(("decided", "asked"), [(COMMIT, ABORT), (ABORT, COMMIT)])
def test_the_opposite_of_the_decision_is_refused(decided: Marker, asked: Marker) -> None:
    world = SITUATIONS["ongoing"]()
    world.execute(end(C5, decided, TV2))
    assert refusal(world.decide(end(C5, asked, TV2))) is ErrorCode.INVALID_TXN_STATE
    assert refusal(world.decide(end(C5, asked, TV1))) is ErrorCode.PRODUCER_FENCED


def test_a_retry_after_an_overflow_is_answered_with_the_fresh_id() -> None:
    old = who(42, MAX - 1)
    world = CoordinatorWorld(85).begin_at(ongoing(producer=old))
    assert world.execute(end(old, COMMIT)) == Reply(producer=who(85, 0))

    assert world.decide(end(old, COMMIT)) == Decision(Reply(producer=who(85, 0)))
    assert refusal(world.decide(end(old, ABORT))) is ErrorCode.INVALID_TXN_STATE
    assert refusal(world.decide(add(old))) is ErrorCode.PRODUCER_FENCED
    assert refusal(world.decide(end(who(42, MAX), COMMIT))) is ErrorCode.PRODUCER_FENCED, "the markers' own epoch"


def test_a_retry_is_forgotten_when_the_next_transaction_begins() -> None:
    world = SITUATIONS["committed-2"]()
    world.execute(add(C6))
    assert refusal(world.decide(end(C5, COMMIT))) is ErrorCode.PRODUCER_FENCED


@pytest.mark.parametrize("version", [TV1, TV2])
def test_a_client_whose_transaction_has_timed_out_may_go_on_with_the_epoch_of_the_abort(
    version: TransactionVersion,
) -> None:
    """KIP-588. A new session has the timeout that it asks for."""
    world = SITUATIONS["timed-out"]()
    for command in (end(C5, COMMIT, TV1), end(C5, ABORT, TV1), add(C5), verify(C5)):
        assert refusal(world.decide(command)) is ErrorCode.PRODUCER_FENCED
    if version is TV2:
        assert refusal(world.decide(end(C5, COMMIT))) is ErrorCode.INVALID_TXN_STATE
        assert world.execute(end(C5, ABORT)).producer == C6
    assert world.execute(init(expected=C5)).producer == C6
    longer = init(expected=C5, timeout_ms=TIMEOUT_MS + 1)
    for _ in range(2):
        assert world.execute(longer).producer == C6
        assert (world.entry.status, world.entry.timeout_ms) == (TransactionStatus.EMPTY, TIMEOUT_MS + 1)
    assert world.execute(add(C6)._replace(version=version)).error is ErrorCode.NONE
    assert world.execute(end(C6, COMMIT, version)).error is ErrorCode.NONE


def test_a_session_after_a_timeout_begins_when_its_client_asks_for_it() -> None:
    """Its transactional id does not expire as that of the transaction which has timed out long ago."""
    world = SITUATIONS["timed-out"]()
    world.now_ms += EXPIRATION_MS - 1
    assert world.execute(init(expected=C5)).producer == C6
    world.now_ms += 1
    assert world.decide(Expire(TXN_ID)) == Decision(Reply())


def test_a_session_that_begins_by_aborting_its_own_transaction_has_the_timeout_that_it_asks_for() -> None:
    world = SITUATIONS["ongoing"]()
    assert world.execute(init(expected=C5, two_phase=True)).producer == C6
    assert world.entry.timeout_ms == NO_TIMEOUT
    world.execute(add(C6))
    world.now_ms += TIMEOUT_MS
    assert world.decide(TimeOut(TXN_ID)) == Decision(Reply())


@pytest.mark.parametrize("situation", ["ongoing", "timed-out"])
def test_a_successor_fences_the_client_before_also_one_whose_transaction_has_timed_out(situation: str) -> None:
    world = SITUATIONS[situation]()
    world.execute(init())
    for command in (end(C5, COMMIT), end(C5, ABORT), end(C5, ABORT, TV1), add(C5), verify(C5), init(expected=C5)):
        assert refusal(world.decide(command)) is ErrorCode.PRODUCER_FENCED


# --- partitions


def test_the_first_partition_starts_the_clock_and_later_ones_do_not() -> None:
    world = SITUATIONS["empty"]()
    world.now_ms = START_MS + 10
    world.execute(add(C5, P0))
    world.now_ms = START_MS + 20
    world.execute(add(C5, P1))
    assert world.entry.partitions == {P0, P1}
    assert (world.entry.started_ms, world.entry.updated_ms) == (START_MS + 10, START_MS + 20)


def test_adding_known_partitions_records_no_fact() -> None:
    world = SITUATIONS["ongoing"]()
    assert world.decide(add(C5, P0)) == Decision(Reply())


@pytest.mark.parametrize("situation", ["empty", "committed-1", "committed-2", "aborted-2"])
def test_a_transaction_does_not_begin_with_no_partition(situation: str) -> None:
    world = SITUATIONS[situation]()
    nothing = add(world.entry.client)._replace(partitions=frozenset())
    assert world.decide(nothing) == Decision(Reply())


def test_only_partitions_that_were_added_are_verified() -> None:
    world = SITUATIONS["ongoing"]()
    assert world.decide(verify(C5, P0)) == Decision(Reply())
    for partitions in ((P1,), (P0, P1)):
        assert refusal(world.decide(verify(C5, *partitions))) is ErrorCode.TRANSACTION_ABORTABLE


def test_markers_go_to_every_partition_that_was_added() -> None:
    world = SITUATIONS["ongoing"]()
    world.execute(add(C5, P1))
    (effect,) = world.step(end(C5)).effects
    assert effect.partitions == {P0, P1}
    assert markers_of(world.entry) == effect, "a restart writes the same ones"


# --- time


def test_a_transaction_is_aborted_when_its_timeout_is_over_and_not_before() -> None:
    world = SITUATIONS["ongoing"]()
    world.now_ms = START_MS + TIMEOUT_MS - 1
    assert world.decide(TimeOut(TXN_ID)) == Decision(Reply())
    world.now_ms += 1
    (effect,) = world.step(TimeOut(TXN_ID)).effects
    assert (effect.marker, effect.producer) == (ABORT, C6)


@pytest.mark.parametrize("keep", [False, True])
def test_a_transaction_of_two_phase_commit_never_times_out(keep: bool) -> None:
    world = CoordinatorWorld().begin_at(ongoing(NO_TIMEOUT))
    if keep:
        world.execute(init(keep=True))
    world.now_ms = 2**62
    assert list(world.table.timed_out(lambda entry: world.now_ms - entry.started_ms)) == []
    assert world.decide(TimeOut(TXN_ID)) == Decision(Reply())


def test_a_kept_transaction_without_two_phase_commit_still_times_out() -> None:
    world = SITUATIONS["kept"]()
    world.now_ms = START_MS + TIMEOUT_MS
    (effect,) = world.step(TimeOut(TXN_ID)).effects
    assert (effect.marker, effect.producer) == (ABORT, C6)
    assert world.entry.client == C7


@pytest.mark.parametrize("situation", [name for name in SITUATIONS if name not in ("ongoing", "kept")])
def test_a_timeout_that_comes_too_late_changes_nothing(situation: str) -> None:
    world = SITUATIONS[situation]()
    world.now_ms = 2**62
    assert world.decide(TimeOut(TXN_ID)) == Decision(Reply())


@pytest.mark.parametrize("situation", [name for name in SITUATIONS if name != "unknown"])
def test_an_id_expires_only_when_it_was_idle_for_long_and_holds_no_transaction(situation: str) -> None:
    world = SITUATIONS[situation]()
    is_idle = world.entry.status in (
        TransactionStatus.EMPTY,
        TransactionStatus.COMPLETE_COMMIT,
        TransactionStatus.COMPLETE_ABORT,
    )
    world.now_ms = world.entry.updated_ms + EXPIRATION_MS - 1
    assert world.decide(Expire(TXN_ID)) == Decision(Reply())
    world.now_ms += 1
    forgotten = (TransactionForgotten(TXN_ID),) if is_idle else ()
    assert world.decide(Expire(TXN_ID)) == Decision(Reply(), forgotten)


def test_an_expired_id_begins_anew_under_an_unused_producer_id() -> None:
    world = SITUATIONS["committed-2"]()
    world.now_ms += EXPIRATION_MS
    world.execute(Expire(TXN_ID))
    assert refusal(world.decide(end(C5))) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert world.execute(init()).producer == who(100, 0)


@pytest.mark.parametrize("command", [TimeOut(TXN_ID), Expire(TXN_ID), MarkersWritten(TXN_ID)])
def test_house_keeping_of_a_forgotten_id_changes_nothing(command: Command) -> None:
    assert CoordinatorWorld().decide(command) == Decision(Reply())


def test_markers_that_are_reported_twice_complete_the_transaction_once() -> None:
    world = SITUATIONS["prepare-commit-2"]()
    assert world.step(MarkersWritten(TXN_ID)).facts
    assert world.step(MarkersWritten(TXN_ID)) == Decision(Reply())


# --- fresh producer ids


def test_a_decision_says_whether_it_took_the_fresh_producer_id() -> None:
    world = CoordinatorWorld(42, 85)
    assert world.decide(init()).takes(42)
    world.execute(init())
    assert not world.decide(init()).takes(85)
    assert not world.decide(add(who(42, 0))).takes(85)
    assert not world.decide(end(who(7, 0))).takes(85)
