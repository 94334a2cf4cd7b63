"""One round of fsyncs for a transaction's fact and its records, and none for its markers: every power cut is survived.

Each safeguard of docs/decisions/0029 is taken out in turn, and some power cut must then be noticed.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from dualwrite.broker.api.transactions.joining import join_transaction
from dualwrite.broker.core.commands import InitProducerId
from dualwrite.broker.facts.transactions import TransactionVersion
from dualwrite.ids import ProducerIdentity, TopicPartition
from dualwrite.records.control import Marker
from dualwrite.wire.error_codes import ErrorCode
from tests.support.breaking.breakable import Breakable
from tests.support.breaking.broken_broker import complete_before_markers_are_durable, finish_before_markers_are_durable
from tests.support.breaking.broker import (
    FINISH_DECIDED,
    GIVES_IDENTITY,
    HAS_UNSYNCED_END,
    IS_TOLD_BY_RECORDS,
    LACKS_MARKER,
    LOST_JOIN,
    LOST_MARKER,
    WRITE_MARKERS,
)
from tests.support.broker.simulated import TOPIC, append, everybody_may
from tests.support.crash.power_cuts import TXN_ID, PowerCutClient, PowerCutHistory, check_every_power_cut

TV1 = TransactionVersion.TV1
COMMIT, ABORT = Marker.COMMIT, Marker.ABORT


async def commits(client: PowerCutClient) -> None:
    """Transactions one after another, some of whose partitions are those of the one before."""
    await client.begin_session()
    await client.end(await client.transaction((0, 1)), COMMIT)
    await client.end(await client.transaction((0,), (2,)), COMMIT)
    await client.end(await client.transaction((1,)), ABORT)
    await client.transaction((1, 2))


async def ends_without_records(client: PowerCutClient) -> None:
    """After a commit, an abort without a transaction: nothing waits for the disk between the two decisions."""
    await client.begin_session()
    await client.end(await client.transaction((0, 1)), COMMIT)
    await client.end(None, ABORT)
    await client.end(None, ABORT)
    await client.end(await client.transaction((0,)), COMMIT)


async def sessions(client: PowerCutClient) -> None:
    """A new session aborts what the one before has left open."""
    await client.begin_session()
    await client.end(await client.transaction((0, 1)), COMMIT)
    unit = await client.transaction((0,))
    with client.history.aborts(TXN_ID):
        await client.begin_session()
    unit.answered = ABORT
    await client.end(await client.transaction((0, 1)), COMMIT)


async def kept(client: PowerCutClient) -> None:
    """A new session keeps the open transaction, and commits it."""
    await client.begin_session()
    await client.end(await client.transaction((1,)), ABORT)
    unit = await client.transaction((0, 1))
    await client.begin_session(keep=True)
    await client.end(unit, COMMIT)
    await client.end(await client.transaction((0, 1)), COMMIT)


async def first_versions(client: PowerCutClient) -> None:
    """A client of TV1, and then one of TV2 with the same identity."""
    await client.begin_session()
    await client.end(await client.transaction((0, 1), version=TV1), COMMIT, TV1)
    await client.end(await client.transaction((0,), version=TV1), ABORT, TV1)
    await client.end(await client.transaction((0, 2)), COMMIT)
    await client.end(await client.transaction((0,)), COMMIT)


async def guesses(client: PowerCutClient) -> None:
    """A record under an identity that no client has been told yet."""
    await client.begin_session()
    await client.end(await client.transaction((0,)), COMMIT)
    asked = asyncio.ensure_future(client.rooms.coordinator.execute(InitProducerId(TXN_ID, 60_000, True)))
    while client.rooms.coordinator.table.entries[TXN_ID].client == client.identity:
        await asyncio.sleep(0)
    guessed = ProducerIdentity(client.identity.producer_id, client.identity.epoch + 1)
    names, broker = frozenset({TopicPartition(TOPIC, 1)}), everybody_may(client.rooms)
    error = await join_transaction(broker, TXN_ID, guessed, names, True)  # type: ignore[arg-type]
    assert error is ErrorCode.NONE
    append(client.rooms.partition(1), b"guessed", guessed, 0)
    await asked


SCRIPTS = [commits, ends_without_records, sessions, kept, first_versions, guesses]


@pytest.mark.slow_cases("commits", "first_versions", "kept", "sessions")
@pytest.mark.parametrize("script", SCRIPTS)
def test_every_power_cut_leaves_what_was_told_and_nothing_half_done(script: PowerCutHistory) -> None:
    assert check_every_power_cut(script) > 20


def never(*_: Any) -> bool:
    return False


def always(*_: Any) -> bool:
    return True


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    ("place", "broken", "script"),
    [
        pytest.param(LOST_JOIN, never, commits, id="records-without-their-fact-are-left-alone"),
        pytest.param(LOST_MARKER, never, commits, id="only-unfinished-decisions-are-looked-at"),
        pytest.param(LACKS_MARKER, always, commits, id="a-marker-is-repeated-where-it-is"),
        pytest.param(HAS_UNSYNCED_END, never, ends_without_records, id="a-decision-does-not-wait-for-the-one-before"),
        pytest.param(IS_TOLD_BY_RECORDS, always, first_versions, id="records-go-with-their-fact-under-an-old-epoch"),
        pytest.param(
            WRITE_MARKERS,
            complete_before_markers_are_durable,
            first_versions,
            id="no-markers-on-disk-for-the-old-version",
        ),
        pytest.param(
            FINISH_DECIDED,
            finish_before_markers_are_durable,
            first_versions,
            id="a-start-does-not-wait-for-the-markers-that-it-repeats",
        ),
        pytest.param(GIVES_IDENTITY, never, guesses, id="records-go-with-their-fact-under-a-lost-identity"),
    ],
)
def test_without_one_safeguard_some_power_cut_is_noticed(
    monkeypatch: pytest.MonkeyPatch, place: Breakable, broken: Callable[..., Any], script: PowerCutHistory
) -> None:
    place.broken_by(monkeypatch, broken)
    with pytest.raises(AssertionError, match=r"hanging transaction|torn transaction|ended as|was ended"):
        check_every_power_cut(script)
