"""The coordinator's rules, searched exhaustively: every order of events in small worlds, where the epochs run out."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dualwrite.broker.core import transaction_rules as rules
from dualwrite.broker.core.commands import Reply
from dualwrite.broker.facts.transactions import TransactionStatus, TransactionVersion
from dualwrite.ids import NO_PRODUCER
from dualwrite.wire.error_codes import ErrorCode
from tests.support.breaking.breakable import Breakable, Broken
from tests.support.breaking.broker import (
    ABORT_BY_COORDINATOR,
    BUMPED,
    COMPLETE,
    IDENTITY_ERROR,
    IS_RETRY,
    KEEP_PREPARED,
    MARKERS_OF,
    PREPARE,
)
from tests.support.broker.transaction_search import (
    ANSWER,
    STATUS,
    VERSIONS,
    TransactionSearchWorld,
    idle,
    kept,
    transactions,
)
from tests.support.broker.transactions import COMMIT, MAX, TV1, TV2, who
from tests.support.exhaustive.states import explore

DEPTH = 7
ANSWERS = {
    ErrorCode.NONE,
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.TRANSACTION_ABORTABLE,
}


def search(first: TransactionSearchWorld, depth: int) -> Counter[str]:
    """How often each thing happened within ``depth`` events; an AssertionError where something must not."""
    model = transactions([first], "a test", ())
    found = explore(model, depth=depth)
    assert [name for name in model.events if not found.seen[name]] == [], "nothing passes for want of events"
    return found.seen


@pytest.mark.slow_cases
@pytest.mark.parametrize("versions", VERSIONS)
@pytest.mark.parametrize("epoch", [5, MAX - 4, MAX - 3, MAX - 2])
def test_no_order_of_events_breaks_a_rule(epoch: int, versions: tuple[TransactionVersion, ...]) -> None:
    seen = search(idle(epoch, versions), DEPTH)

    assert {status for status in TransactionStatus if seen[STATUS[status]]} == {*TransactionStatus} - {
        TransactionStatus.DEAD
    }
    assert {error for error in ErrorCode if seen[ANSWER[error]]} == ANSWERS
    retries = {f"EndTransaction retried under {version.name}" for version in versions}
    assert seen.keys() >= {"InitProducerId retried", "marker written again", *retries}
    if epoch > 5:
        assert seen.keys() >= {"overflow of InitProducerId"}
    if epoch == MAX - 3 and TV2 in versions:
        assert seen.keys() >= {
            "overflow of EndTransaction",
            "overflow of TimeOut",
            "overflow of InitProducerId of a kept transaction",
        }


@pytest.mark.slow_cases
@pytest.mark.parametrize("versions", VERSIONS)
@pytest.mark.parametrize("epoch", [MAX - 2, MAX - 1])
def test_no_order_of_events_breaks_a_rule_after_a_second_overflow(
    epoch: int, versions: tuple[TransactionVersion, ...]
) -> None:
    seen = search(kept(epoch, MAX - 1, versions), DEPTH)

    assert "overflow of InitProducerId of a kept transaction" in seen
    if TV2 in versions:
        assert "overflow of EndTransaction" in seen


@pytest.mark.slow
@pytest.mark.parametrize("versions", VERSIONS)
@pytest.mark.parametrize(
    "first", [idle(MAX - 4, (TV1, TV1)), idle(MAX - 3, (TV1, TV1)), kept(MAX - 1, MAX - 1, (TV1, TV1))]
)
def test_no_longer_order_of_events_breaks_a_rule(
    first: TransactionSearchWorld, versions: tuple[TransactionVersion, ...]
) -> None:
    clients = zip(first.clients, versions, strict=True)
    world = replace(first, clients=tuple(replace(client, version=version) for client, version in clients))
    assert search(world, DEPTH + 3)


# --- negative controls: rules that are broken on purpose


def anybody_known_may_write(entry: Any, producer: Any) -> ErrorCode:
    known = (entry.client.producer_id, entry.producer.producer_id)
    return ErrorCode.NONE if producer.producer_id in known else ErrorCode.INVALID_PRODUCER_ID_MAPPING


def anybody_known_is_a_retry(entry: Any, command: Any) -> bool:
    return bool(command.producer.producer_id == entry.client.producer_id)


def a_successor_leaves_its_victim_a_retry(entry: Any, at: Any, survivor: Any = NO_PRODUCER) -> Any:
    decision = PREPARE.original(entry, rules.Marker.ABORT, TV2, at)
    return decision._replace(facts=(decision.facts[0]._replace(previous=entry.client),))


def keeping_bumps_nothing(entry: Any, timeout_ms: int, at: Any) -> Any:
    """KIP-939, "Rejected Alternatives: Skip Epoch Bump When KeepPreparedTxn=true"."""
    return rules.Decision(Reply(producer=entry.client, ongoing=entry.producer), (entry,))


def epochs_never_run_out(client: Any, at: Any) -> Any:
    return who(client.producer_id, client.epoch + 1)


def a_commit_completes_as_an_abort(entry: Any, at: Any) -> Any:
    status = TransactionStatus.COMPLETE_ABORT
    fact = entry._replace(status=status, producer=entry.client, next_producer=NO_PRODUCER, partitions=frozenset())
    return rules.Decision(Reply(), (fact,))


def markers_leave_the_epoch(entry: Any) -> Any:
    epoch_before = who(entry.producer.producer_id, max(0, entry.producer.epoch - 1))
    return rules.WriteMarkers(entry.transactional_id, epoch_before, COMMIT, entry.partitions)


def markers_take_the_clients_identity(entry: Any) -> Any:
    return rules.WriteMarkers(entry.transactional_id, entry.client, COMMIT, entry.partitions)


BROKEN: list[Broken] = [
    (IDENTITY_ERROR, anybody_known_may_write),
    (IS_RETRY, anybody_known_is_a_retry),
    (ABORT_BY_COORDINATOR, a_successor_leaves_its_victim_a_retry),
    (KEEP_PREPARED, keeping_bumps_nothing),
    (BUMPED, epochs_never_run_out),
    (COMPLETE, a_commit_completes_as_an_abort),
    (MARKERS_OF, markers_leave_the_epoch),
    (MARKERS_OF, markers_take_the_clients_identity),
]


@pytest.mark.parametrize(("rule", "broken"), BROKEN, ids=[broken.__name__ for _, broken in BROKEN])
def test_the_search_finds_a_broken_rule(
    monkeypatch: pytest.MonkeyPatch, rule: Breakable, broken: Callable[..., Any]
) -> None:
    rule.broken_by(monkeypatch, broken)
    worlds = [idle(MAX - 3, versions) for versions in VERSIONS]
    with pytest.raises(AssertionError):
        list(map(search, worlds, [DEPTH] * len(worlds)))
