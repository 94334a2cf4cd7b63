"""The safeguards of the recipe and of the broker, each with what stands in its place once it is taken away.

A safeguard whose removal no seed notices is useless, or the simulation does not reach what it guards against.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest

from dualwrite.broker.facts.transactions import TransactionVersion
from dualwrite.coordinator.rules.machine import Step
from tests.support.breaking import whole
from tests.support.breaking.breakable import Breakable
from tests.support.breaking.broken_broker import (
    beginning_again,
    committed_at_once,
    finish_nothing,
    finished_without_a_sync,
    going_on_after_an_error,
    joined_in_any_case,
    markers_before_the_decision_is_durable,
    markers_for_one_partition_only,
    no_barrier,
)
from tests.support.breaking.broker import (
    AFTER_CRITICAL,
    BARRIER,
    BUMPED,
    COMMIT_OFFSETS,
    EXECUTE,
    FINISH_DECIDED,
    FINISH_REPLACEMENT,
    HAS_UNSYNCED_END,
    JOIN_WITH_OFFSETS,
    KEEP_PREPARED,
    LOST_JOIN,
    LOST_MARKER,
    REFUSES_EPOCH,
    WRITE_MARKERS,
)
from tests.support.breaking.coordinator import COLLECTED_COMMIT, STEP_ACTIONS, commit_whose_failure_is_forgotten


class Ablation(NamedTuple):
    """One safeguard and its removal.

    :param name: for the command line.
    :param safeguard: what is taken away.
    """

    name: str
    safeguard: str
    replacements: tuple[tuple[Breakable, object], ...]

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The product without the safeguard, for the ``with`` block."""
        with pytest.MonkeyPatch.context() as patch:
            for breakable, replacement in self.replacements:
                breakable.broken_by(patch, replacement)
            yield


def _of_step(step: Step, action: object) -> tuple[tuple[Breakable, object], ...]:
    return ((STEP_ACTIONS, {**STEP_ACTIONS.original, step: action}),)


_UNLOCKED = ((whole.LOCKED, whole.read_without_lock), (whole.LOCKED_AT_ONCE, whole.read_all_without_lock))

ABLATIONS = {
    ablation.name: ablation
    for ablation in (
        Ablation(
            "no-anchor",
            "a state of the older protocol names the first record of its transaction",
            ((whole.IDENTIFIES, whole.same_producer),),
        ),
        Ablation(
            "no-fencing-token",
            "a unit of work commits only under the fencing token of its lease",
            ((whole.REQUIRE_ROW, whole.believed),),
        ),
        Ablation(
            "no-row-lock",
            "recovery holds the lock of the state row from its reading to its decision",
            _UNLOCKED,
        ),
        Ablation(
            "state-with-the-commit",
            "the state is stored before the COMMIT, so that the row is locked by then",
            ((whole.STORE_STATE, whole.remembered), (whole.CARRY_OUT, whole.stored_with_commit)),
        ),
        Ablation(
            "lease-as-lock",
            "a lease is no lock: only token and row lock decide who may commit",
            ((whole.REQUIRE_ROW, whole.believed), *_UNLOCKED),
        ),
        Ablation(
            "token-not-read-again",
            "recovery reads the token again, after it has fenced Kafka",
            ((whole.VERIFY, whole.not_read_again),),
        ),
        Ablation(
            "plain-init-before-recovery",
            "nothing sends a plain InitProducerId before recovery has decided",
            ((whole.RECOVER, whole.initialized_first),),
        ),
        Ablation(
            "plain-init-of-a-session",
            "a producer's InitProducerId aborts nothing, so that a late copy of it does no harm",
            ((whole.BEGUN_SESSION, staticmethod(whole.plain_session)),),
        ),
        Ablation(
            "init-after-recovery-aborts",
            "the init at the end of a recovery aborts no transaction, which would be a successor's",
            ((whole.INIT, whole.init_that_aborts),),
        ),
        Ablation(
            "commit-of-any-open-transaction",
            "recovery commits the open transaction only if the row names it",
            ((whole.VERDICT, whole.committed_whatever_is_open),),
        ),
        Ablation(
            "guess-after-commit-error",
            "after an error of COMMIT the row is read: the unit is not run again on a guess",
            _of_step(Step.READ_DECISION, whole.guessed),
        ),
        Ablation(
            "producer-used-again",
            "after a commit or abort of unknown outcome the producer is dropped, and recovery follows",
            _of_step(Step.FINISH_LATER, whole.used_again),
        ),
        Ablation(
            "commit-failure-forgotten",
            "a commit that was sent and not confirmed is recovered before the slot is used again",
            ((COLLECTED_COMMIT, commit_whose_failure_is_forgotten),),
        ),
        Ablation(
            "records-not-acknowledged",
            "prepare waits until every record is acknowledged",
            ((whole.PREPARE_TRANSACTION, whole.prepared_without_waiting),),
        ),
        Ablation(
            "keep-prepared-wrong-identity",
            "keepPreparedTxn answers the identity of the transaction that it keeps",
            ((KEEP_PREPARED, whole.kept_under_the_new_identity),),
        ),
        Ablation(
            "epoch-not-bumped",
            "each transaction has an epoch of its own",
            ((whole.VERSION_OF_NEW_END, TransactionVersion.TV1),),
        ),
        Ablation(
            "epochs-begin-again",
            "once the epochs of a producer id have run out, its producer gets another id",
            ((BUMPED, beginning_again),),
        ),
        Ablation("no-fsync-before-answer", "the broker answers once the disk has it", ((BARRIER, no_barrier),)),
        Ablation(
            "disk-error-ignored",
            "the broker ends at an error of its disk, and a start reads what is there",
            ((AFTER_CRITICAL, going_on_after_an_error),),
        ),
        Ablation(
            "produce-without-fsync",
            "a Produce is answered once the disk has its records",
            ((whole.ROUTES, whole.ROUTES_WITHOUT_WAIT),),
        ),
        Ablation(
            "markers-before-decision",
            "markers follow once the decision is durable",
            ((EXECUTE, markers_before_the_decision_is_durable),),
        ),
        Ablation(
            "markers-in-one-partition",
            "every partition of a transaction gets its marker",
            ((WRITE_MARKERS, markers_for_one_partition_only),),
        ),
        Ablation(
            "offsets-at-once",
            "a consumer group's offsets count once the transaction that has them is committed",
            ((COMMIT_OFFSETS, committed_at_once),),
        ),
        Ablation(
            "late-offsets-taken",
            "offsets that arrive after their transaction has ended are refused",
            ((JOIN_WITH_OFFSETS, joined_in_any_case), (REFUSES_EPOCH, whole.never)),
        ),
        Ablation(
            "decided-not-finished",
            "a start of the broker completes what was decided",
            ((FINISH_DECIDED, finish_nothing),),
        ),
        Ablation(
            "lost-marker-not-repeated",
            "a start repeats a marker that a power cut has taken",
            ((LOST_MARKER, whole.never),),
        ),
        Ablation(
            "lost-join-not-repeated",
            "a start adds a partition whose fact a power cut has taken",
            ((LOST_JOIN, whole.never),),
        ),
        Ablation(
            "next-decision-before-markers",
            "the markers of a transaction are durable before the next decision of its id",
            ((HAS_UNSYNCED_END, whole.never),),
        ),
        Ablation(
            "compaction-without-fsync",
            "a compacted segment is on disk before it replaces others",
            ((FINISH_REPLACEMENT, finished_without_a_sync),),
        ),
        Ablation(
            "no-sequence-check",
            "a batch that is sent again is in the log once",
            ((whole.DECIDE_BATCH, whole.without_duplicates_check),),
        ),
        Ablation(
            "lso-past-open-transaction",
            "read_committed readers wait before an open transaction",
            ((whole.LAST_STABLE_OFFSET, property(whole.whole_log)),),
        ),
        Ablation(
            "row-of-another-cluster-believed",
            "a state row of another cluster is left to the processes of that cluster",
            ((whole.STATUS, whole.status_in_any_cluster),),
        ),
        Ablation(
            "log-of-another-cluster-believed",
            "what a unit of work has left in one cluster is not looked for in the log of another",
            ((whole.COMPLETE, whole.looked_for_in_any_cluster),),
        ),
        Ablation(
            "state-not-compared",
            "a state replaces only the one that its process has read or stored last; a renewal compares it, too",
            (
                (whole.REQUIRE_ROW, whole.token_alone),
                (whole.REQUIRE_RENEWED_ROW, whole.token_alone),
                (whole.REQUIRE_STATE, whole.believed),
            ),
        ),
        Ablation(
            "tokens-one-by-one",
            "a fencing token is raised by a random number: after a forgotten lease no two owners have the same",
            ((whole.NEXT_TOKEN, whole.next_number),),
        ),
        Ablation(
            "row-stays-new",
            "a row with a decision is not new any more, even if the database has forgotten that it was recovered",
            ((whole.STORING, whole.storing_the_state_alone),),
        ),
        Ablation(
            "doubt-not-looked-up",
            "the transaction of a COMMIT in doubt that the row does not know is looked for in Kafka's log",
            ((whole.HAS_COMMITTED, whole.never),),
        ),
        Ablation(
            "database-forgets",
            "the database keeps what it has committed",
            ((whole.COMMIT, whole.remembering_commit), (whole.RESTART, whole.forgetful_restart)),
        ),
    )
}
