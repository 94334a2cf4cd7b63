"""Every client command in every situation, from every possible sender: the answer, and the change of state."""

import pytest

from dualwrite.broker.core.commands import Command, Decision
from dualwrite.broker.facts.transactions import TransactionRecorded, TransactionStatus
from dualwrite.ids import NO_PRODUCER, ProducerIdentity
from dualwrite.wire.error_codes import ErrorCode
from tests.support.broker.transactions import (
    ABORT,
    C5,
    C6,
    COMMIT,
    P0,
    P1,
    SITUATIONS,
    TV1,
    TV2,
    TXN_ID,
    CoordinatorWorld,
    add,
    end,
    init,
    verify,
    who,
)

WORDS = {
    "mapping": ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    "fenced": ErrorCode.PRODUCER_FENCED,
    "state": ErrorCode.INVALID_TXN_STATE,
    "wait": ErrorCode.CONCURRENT_TRANSACTIONS,
    "abortable": ErrorCode.TRANSACTION_ABORTABLE,
}
"""In the tables, and two more words: "ok" succeeds with a fact, "again" succeeds without one."""

ADD = """
                 client    42:5      42:6      stale   future  foreign  nobody
unknown          mapping   mapping   mapping   mapping mapping mapping  mapping
empty            ok        ok        fenced    fenced  fenced  mapping  mapping
ongoing          ok        ok        fenced    fenced  fenced  mapping  mapping
kept             state     fenced    state     fenced  fenced  mapping  mapping
prepare-commit-1 wait      wait      wait      wait    wait    wait     mapping
prepare-commit-2 wait      wait      wait      wait    wait    wait     mapping
prepare-abort-2  wait      wait      wait      wait    wait    wait     mapping
prepare-kept     wait      wait      wait      wait    wait    wait     mapping
fencing          wait      wait      wait      wait    wait    wait     mapping
committed-1      ok        ok        fenced    fenced  fenced  mapping  mapping
aborted-1        ok        ok        fenced    fenced  fenced  mapping  mapping
committed-2      ok        fenced    ok        fenced  fenced  mapping  mapping
aborted-2        ok        fenced    ok        fenced  fenced  mapping  mapping
kept-committed-1 ok        fenced    ok        fenced  fenced  mapping  mapping
kept-committed-2 ok        fenced    fenced    fenced  fenced  mapping  mapping
fenced           ok        fenced    ok        fenced  fenced  mapping  mapping
timed-out        ok        fenced    ok        fenced  fenced  mapping  mapping
"""

VERIFY = """
                 client    42:5      42:6      stale   future  foreign  nobody
unknown          mapping   mapping   mapping   mapping mapping mapping  mapping
empty            abortable abortable fenced    fenced  fenced  mapping  mapping
ongoing          again     again     fenced    fenced  fenced  mapping  mapping
kept             abortable fenced    abortable fenced  fenced  mapping  mapping
prepare-commit-1 wait      wait      fenced    fenced  fenced  mapping  mapping
prepare-commit-2 wait      fenced    wait      fenced  fenced  mapping  mapping
prepare-abort-2  wait      fenced    wait      fenced  fenced  mapping  mapping
prepare-kept     wait      fenced    fenced    fenced  fenced  mapping  mapping
fencing          wait      fenced    wait      fenced  fenced  mapping  mapping
committed-1      abortable abortable fenced    fenced  fenced  mapping  mapping
aborted-1        abortable abortable fenced    fenced  fenced  mapping  mapping
committed-2      abortable fenced    abortable fenced  fenced  mapping  mapping
aborted-2        abortable fenced    abortable fenced  fenced  mapping  mapping
kept-committed-1 abortable fenced    abortable fenced  fenced  mapping  mapping
kept-committed-2 abortable fenced    fenced    fenced  fenced  mapping  mapping
fenced           abortable fenced    abortable fenced  fenced  mapping  mapping
timed-out        abortable fenced    abortable fenced  fenced  mapping  mapping
"""

COMMIT_TV1 = """
                 client    42:5      42:6      stale   future  foreign  nobody
unknown          mapping   mapping   mapping   mapping mapping mapping  mapping
empty            state     state     fenced    fenced  fenced  mapping  mapping
ongoing          ok        ok        fenced    fenced  fenced  mapping  mapping
kept             ok        fenced    ok        fenced  fenced  mapping  mapping
prepare-commit-1 wait      wait      wait      wait    wait    wait     mapping
prepare-commit-2 wait      wait      wait      wait    wait    wait     mapping
prepare-abort-2  wait      wait      wait      wait    wait    wait     mapping
prepare-kept     wait      wait      wait      wait    wait    wait     mapping
fencing          wait      wait      wait      wait    wait    wait     mapping
committed-1      again     again     fenced    fenced  fenced  mapping  mapping
aborted-1        state     state     fenced    fenced  fenced  mapping  mapping
committed-2      state     fenced    state     fenced  fenced  mapping  mapping
aborted-2        state     fenced    state     fenced  fenced  mapping  mapping
kept-committed-1 again     fenced    again     fenced  fenced  mapping  mapping
kept-committed-2 state     fenced    fenced    fenced  fenced  mapping  mapping
fenced           state     fenced    state     fenced  fenced  mapping  mapping
timed-out        state     fenced    state     fenced  fenced  mapping  mapping
"""

COMMIT_TV2 = """
                 client    42:5      42:6      stale   future  foreign  nobody
unknown          mapping   mapping   mapping   mapping mapping mapping  mapping
empty            state     state     fenced    fenced  fenced  mapping  mapping
ongoing          ok        ok        fenced    fenced  fenced  mapping  mapping
kept             ok        fenced    ok        fenced  fenced  mapping  mapping
prepare-commit-1 wait      wait      wait      wait    wait    wait     mapping
prepare-commit-2 wait      wait      wait      wait    wait    wait     mapping
prepare-abort-2  wait      wait      wait      wait    wait    wait     mapping
prepare-kept     wait      wait      wait      wait    wait    wait     mapping
fencing          wait      wait      wait      wait    wait    wait     mapping
committed-1      state     state     fenced    fenced  fenced  mapping  mapping
aborted-1        state     state     fenced    fenced  fenced  mapping  mapping
committed-2      state     again     state     fenced  fenced  mapping  mapping
aborted-2        state     state     state     fenced  fenced  mapping  mapping
kept-committed-1 state     fenced    state     fenced  fenced  mapping  mapping
kept-committed-2 state     fenced    again     fenced  fenced  mapping  mapping
fenced           state     fenced    state     fenced  fenced  mapping  mapping
timed-out        state     state     state     fenced  fenced  mapping  mapping
"""

ABORT_TV1 = """
                 client    42:5      42:6      stale   future  foreign  nobody
unknown          mapping   mapping   mapping   mapping mapping mapping  mapping
empty            state     state     fenced    fenced  fenced  mapping  mapping
ongoing          ok        ok        fenced    fenced  fenced  mapping  mapping
kept             ok        fenced    ok        fenced  fenced  mapping  mapping
prepare-commit-1 wait      wait      wait      wait    wait    wait     mapping
prepare-commit-2 wait      wait      wait      wait    wait    wait     mapping
prepare-abort-2  wait      wait      wait      wait    wait    wait     mapping
prepare-kept     wait      wait      wait      wait    wait    wait     mapping
fencing          wait      wait      wait      wait    wait    wait     mapping
committed-1      state     state     fenced    fenced  fenced  mapping  mapping
aborted-1        again     again     fenced    fenced  fenced  mapping  mapping
committed-2      state     fenced    state     fenced  fenced  mapping  mapping
aborted-2        state     fenced    state     fenced  fenced  mapping  mapping
kept-committed-1 state     fenced    state     fenced  fenced  mapping  mapping
kept-committed-2 state     fenced    fenced    fenced  fenced  mapping  mapping
fenced           state     fenced    state     fenced  fenced  mapping  mapping
timed-out        state     fenced    state     fenced  fenced  mapping  mapping
"""

ABORT_TV2 = """
                 client    42:5      42:6      stale   future  foreign  nobody
unknown          mapping   mapping   mapping   mapping mapping mapping  mapping
empty            ok        ok        fenced    fenced  fenced  mapping  mapping
ongoing          ok        ok        fenced    fenced  fenced  mapping  mapping
kept             ok        fenced    ok        fenced  fenced  mapping  mapping
prepare-commit-1 wait      wait      wait      wait    wait    wait     mapping
prepare-commit-2 wait      wait      wait      wait    wait    wait     mapping
prepare-abort-2  wait      wait      wait      wait    wait    wait     mapping
prepare-kept     wait      wait      wait      wait    wait    wait     mapping
fencing          wait      wait      wait      wait    wait    wait     mapping
committed-1      ok        ok        fenced    fenced  fenced  mapping  mapping
aborted-1        ok        ok        fenced    fenced  fenced  mapping  mapping
committed-2      ok        state     ok        fenced  fenced  mapping  mapping
aborted-2        ok        again     ok        fenced  fenced  mapping  mapping
kept-committed-1 ok        fenced    ok        fenced  fenced  mapping  mapping
kept-committed-2 ok        fenced    state     fenced  fenced  mapping  mapping
fenced           ok        fenced    ok        fenced  fenced  mapping  mapping
timed-out        ok        again     ok        fenced  fenced  mapping  mapping
"""

PLAIN_INIT = """
                 client    42:5      42:6      stale   future  foreign  nobody
unknown          ok        ok        ok        ok      ok      ok       ok
empty            ok        ok        fenced    fenced  fenced  fenced   ok
ongoing          ok        ok        fenced    fenced  fenced  fenced   ok
kept             ok        fenced    ok        fenced  fenced  fenced   ok
prepare-commit-1 wait      wait      wait      wait    wait    wait     wait
prepare-commit-2 wait      wait      wait      wait    wait    wait     wait
prepare-abort-2  wait      wait      wait      wait    wait    wait     wait
prepare-kept     wait      wait      wait      wait    wait    wait     wait
fencing          wait      wait      wait      wait    wait    wait     wait
committed-1      ok        ok        fenced    fenced  fenced  fenced   ok
aborted-1        ok        ok        fenced    fenced  fenced  fenced   ok
committed-2      ok        ok        ok        fenced  fenced  fenced   ok
aborted-2        ok        ok        ok        fenced  fenced  fenced   ok
kept-committed-1 ok        fenced    ok        fenced  fenced  fenced   ok
kept-committed-2 ok        fenced    ok        fenced  fenced  fenced   ok
fenced           ok        fenced    ok        fenced  fenced  fenced   ok
timed-out        ok        ok        ok        fenced  fenced  fenced   ok
"""
"""InitProducerId with the identity that the client expects to have (KIP-360), and without one under "nobody"."""


def rows(table: str) -> dict[str, dict[str, str]]:
    header, *lines = table.strip().splitlines()
    columns = header.split()
    return {name: dict(zip(columns, cells, strict=True)) for name, *cells in map(str.split, lines)}


def senders(world: CoordinatorWorld) -> dict[str, ProducerIdentity]:
    client = world.entry.client if TXN_ID in world.table.entries else C5
    return {
        "client": client,
        "42:5": C5,
        "42:6": C6,
        "stale": who(42, 1),
        "future": who(42, client.epoch + 3),
        "foreign": who(7, 0),
        "nobody": NO_PRODUCER,
    }


def word(decision: Decision) -> str:
    if decision.reply is None:  # the coordinator aborts first, and decides again
        assert decision.effects
        return "ok"
    if decision.reply.error is ErrorCode.NONE:
        return "ok" if decision.facts else "again"
    assert not decision.facts
    assert not decision.effects
    assert decision.reply.producer == NO_PRODUCER, "a refused client gets no identity"
    return next(name for name, code in WORDS.items() if code is decision.reply.error)


COMMANDS = {
    "add": (ADD, lambda sender: add(sender, P0, P1)),
    "verify": (VERIFY, verify),
    "commit-1": (COMMIT_TV1, lambda sender: end(sender, COMMIT, TV1)),
    "commit-2": (COMMIT_TV2, lambda sender: end(sender, COMMIT, TV2)),
    "abort-1": (ABORT_TV1, lambda sender: end(sender, ABORT, TV1)),
    "abort-2": (ABORT_TV2, lambda sender: end(sender, ABORT, TV2)),
    "init": (PLAIN_INIT, lambda sender: init(expected=sender)),
}


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("name", COMMANDS)
def test_the_answer_to_every_command_in_every_state_from_every_client(name: str, situation: str) -> None:
    table, command_of = COMMANDS[name]

    actual = {
        column: word(SITUATIONS[situation]().step(command_of(sender)))
        for column, sender in senders(SITUATIONS[situation]()).items()
    }

    assert actual == rows(table)[situation]


def test_every_table_names_every_situation() -> None:
    for table, _ in COMMANDS.values():
        assert list(rows(table)) == list(SITUATIONS)


@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_decision_changes_nothing_by_itself(situation: str) -> None:
    world = SITUATIONS[situation]()
    before = dict(world.table.entries)
    for _, command_of in COMMANDS.values():
        for sender in senders(world).values():
            world.decide(command_of(sender))
    assert world.table.entries == before


@pytest.mark.parametrize("situation", [name for name in SITUATIONS if name != "unknown"])
def test_a_retried_end_is_answered_with_the_identity_of_the_living_client(situation: str) -> None:
    world = SITUATIONS[situation]()
    for result in (COMMIT, ABORT):
        for version in (TV1, TV2):
            for sender in senders(world).values():
                decision = world.decide(end(sender, result, version))
                if word(decision) == "again":
                    assert decision.reply is not None
                    assert decision.reply.producer == world.entry.client


ENDINGS: list[tuple[str, Command, TransactionStatus, ProducerIdentity, ProducerIdentity]] = [
    ("ongoing", end(C5, COMMIT, TV1), TransactionStatus.PREPARE_COMMIT, C5, C5),
    ("ongoing", end(C5, ABORT, TV1), TransactionStatus.PREPARE_ABORT, C5, C5),
    ("ongoing", end(C5, COMMIT, TV2), TransactionStatus.PREPARE_COMMIT, C6, C6),
    ("ongoing", end(C5, ABORT, TV2), TransactionStatus.PREPARE_ABORT, C6, C6),
    ("ongoing", init(), TransactionStatus.PREPARE_ABORT, C6, C6),
    ("kept", end(C6, COMMIT, TV1), TransactionStatus.PREPARE_COMMIT, C6, C6),
    ("kept", end(C6, ABORT, TV1), TransactionStatus.PREPARE_ABORT, C6, C6),
    ("kept", end(C6, COMMIT, TV2), TransactionStatus.PREPARE_COMMIT, C6, who(42, 7)),
    ("kept", end(C6, ABORT, TV2), TransactionStatus.PREPARE_ABORT, C6, who(42, 7)),
    ("kept", init(), TransactionStatus.PREPARE_ABORT, C6, who(42, 7)),
]
"""(situation, command, the status that it leads to, the identity of the markers, the identity of the client)"""


@pytest.mark.parametrize(("situation", "command", "status", "marker_producer", "client"), ENDINGS)
def test_an_ending_writes_markers_that_fence_the_owner_to_every_partition(
    situation: str,
    command: Command,
    status: TransactionStatus,
    marker_producer: ProducerIdentity,
    client: ProducerIdentity,
) -> None:
    world = SITUATIONS[situation]()

    decision = world.step(command)

    (fact,), (effect,) = decision.facts, decision.effects
    assert isinstance(fact, TransactionRecorded)
    assert (fact.status, fact.client) == (status, client)
    assert effect.producer == marker_producer == fact.producer
    assert effect.marker is (COMMIT if status is TransactionStatus.PREPARE_COMMIT else ABORT)
    assert effect.partitions == frozenset({P0})


def test_an_ending_without_partitions_writes_no_marker_but_bumps_the_epoch() -> None:
    """KIP-890 part 2: a client that aborts before its first record reached any broker is fenced off from its past."""
    world = SITUATIONS["empty"]()

    reply = world.execute(end(C5, ABORT, TV2))

    assert reply.producer == C6
    assert world.entry.status is TransactionStatus.COMPLETE_ABORT
    assert world.entry.partitions == frozenset()
