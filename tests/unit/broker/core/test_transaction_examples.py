"""KIP-939's worked examples, step by step; each step quotes the KIP's TC STATE and RESPONSE."""

import re

from dualwrite.broker.core.commands import MarkersWritten, Reply
from dualwrite.broker.facts.transactions import NO_TIMEOUT, TransactionRecorded
from dualwrite.wire.error_codes import ErrorCode
from tests.support.broker.transactions import COMMIT, MAX, TXN_ID, World, add, end, init, recorded, who

_NAMES = {"MAX-1": str(MAX - 1), "MAX": str(MAX)}


def quoted(text: str) -> dict[str, str]:
    """``Name=value`` pairs of a line of the KIP; MAX and MAX-1 as numbers."""
    return {name: _NAMES.get(value, value) for name, value in re.findall(r"(\w+)=(MAX-1|MAX|-?\d+)", text)}


def assert_tc_state(entry: TransactionRecorded, quote: str) -> None:
    """``quote`` is a TC STATE of the KIP: the status, then fields. A field that it does not name is not looked at."""
    status, _, fields = quote.partition(", ")
    actual = {
        "ProducerId": entry.producer.producer_id,
        "ProducerEpoch": entry.producer.epoch,
        "PrevProducerId": entry.previous.producer_id,
        "NextProducerId": entry.next_producer.producer_id,
        "NextProducerEpoch": entry.next_producer.epoch,
    }
    assert entry.status.kafka_name == status
    assert {name: str(value) for name, value in actual.items()} == quoted(fields)


def assert_response(reply: Reply | None, quote: str) -> None:
    """``quote`` is a RESPONSE of the KIP; EndTxn's has no ongoing pair."""
    assert reply is not None
    assert reply.error is ErrorCode.NONE
    actual = {
        "ProducerId": reply.producer.producer_id,
        "Epoch": reply.producer.epoch,
        "OngoingTxnProducerId": reply.ongoing.producer_id,
        "OngoingTxnEpoch": reply.ongoing.epoch,
    }
    wanted = quoted(quote)
    assert {name: str(actual[name]) for name in wanted} == wanted


def test_vanilla_kip_890_transaction_with_epoch_overflow() -> None:
    world = World(85).begin_at(recorded(producer=who(42, MAX - 2)))

    reply = world.step(init(keep=False)).reply  # 1
    assert_tc_state(
        world.entry,
        "Empty, ProducerId=42, ProducerEpoch=MAX-1, PrevProducerId=-1, NextProducerId=-1, NextProducerEpoch=-1",
    )
    assert_response(reply, "ProducerId=42, Epoch=MAX-1, OngoingTxnProducerId=-1, OngoingTxnEpoch=-1")

    world.step(add(who(42, MAX - 1)))  # 2
    assert_tc_state(
        world.entry,
        "Ongoing, ProducerId=42, ProducerEpoch=MAX-1, PrevProducerId=-1, NextProducerId=-1, NextProducerEpoch=-1",
    )

    decision = world.step(end(who(42, MAX - 1), COMMIT))  # 3
    assert_tc_state(
        world.entry,
        "PrepareCommit, ProducerId=42, ProducerEpoch=MAX, PrevProducerId=42, NextProducerId=85, NextProducerEpoch=0",
    )
    assert_response(decision.reply, "ProducerId=85, Epoch=0")
    assert [effect.producer for effect in decision.effects] == [who(42, MAX)]

    world.step(MarkersWritten(TXN_ID))  # 4
    assert_tc_state(
        world.entry,
        "CompleteCommit, ProducerId=85, ProducerEpoch=0, PrevProducerId=42, NextProducerId=-1, NextProducerEpoch=-1",
    )


def test_two_phase_commit_transaction_with_two_epoch_overflows() -> None:
    world = World(73, 85).begin_at(recorded(producer=who(42, MAX - 2)))

    reply = world.step(init(two_phase=True)).reply  # 1
    assert_tc_state(
        world.entry,
        "Empty, ProducerId=42, ProducerEpoch=MAX-1, PrevProducerId=-1, NextProducerId=-1, NextProducerEpoch=-1",
    )
    assert_response(reply, "ProducerId=42, Epoch=MAX-1, OngoingTxnProducerId=-1, OngoingTxnEpoch=-1")

    world.step(add(who(42, MAX - 1)))  # 2
    assert_tc_state(
        world.entry,
        "Ongoing, ProducerId=42, ProducerEpoch=MAX-1, PrevProducerId=-1, NextProducerId=-1, NextProducerEpoch=-1",
    )

    # 3 (Transaction is prepared on the client, then client crashed)
    reply = world.step(init(keep=True, two_phase=True)).reply  # 4
    assert_tc_state(
        world.entry,
        "Ongoing, ProducerId=42, ProducerEpoch=MAX-1, PrevProducerId=-1, NextProducerId=73, NextProducerEpoch=0",
    )
    assert_response(reply, "ProducerId=73, Epoch=0, OngoingTxnProducerId=42, OngoingTxnEpoch=MAX-1")

    # 5 (crash the client)
    reply = world.step(init(keep=True, two_phase=True)).reply  # 6
    assert_tc_state(
        world.entry,
        "Ongoing, ProducerId=42, ProducerEpoch=MAX-1, PrevProducerId=-1, NextProducerId=73, NextProducerEpoch=1",
    )
    assert_response(reply, "ProducerId=73, Epoch=1, OngoingTxnProducerId=42, OngoingTxnEpoch=MAX-1")

    for epoch in range(2, MAX):  # 7 (crash the client a few times to drive the NextProducerEpoch to MAX-1)
        reply = world.step(init(keep=True, two_phase=True)).reply
        assert reply == Reply(producer=who(73, epoch), ongoing=who(42, MAX - 1))

    reply = world.step(init(keep=True, two_phase=True)).reply  # 8
    assert_tc_state(
        world.entry,
        "Ongoing, ProducerId=42, ProducerEpoch=MAX-1, PrevProducerId=-1, NextProducerId=73, NextProducerEpoch=MAX",
    )
    assert_response(reply, "ProducerId=73, Epoch=MAX, OngoingTxnProducerId=42, OngoingTxnEpoch=MAX-1")

    decision = world.step(end(who(73, MAX), COMMIT))  # 9
    assert_tc_state(
        world.entry,
        "PrepareCommit, ProducerId=42, ProducerEpoch=MAX, PrevProducerId=73, NextProducerId=85, NextProducerEpoch=0",
    )
    assert_response(decision.reply, "ProducerId=85, Epoch=0")
    assert [effect.producer for effect in decision.effects] == [who(42, MAX)]

    world.step(MarkersWritten(TXN_ID))  # 10
    assert_tc_state(
        world.entry,
        "CompleteCommit, ProducerId=85, ProducerEpoch=0, PrevProducerId=73, NextProducerId=-1, NextProducerEpoch=-1",
    )
    assert world.entry.timeout_ms == NO_TIMEOUT


def test_an_unanswered_commit_retried_after_each_example_gets_the_same_answer() -> None:
    """KIP-939: "if the commit operation times out and the client retries with the previous ProducerId and
    ProducerEpoch we can detect the retry and return success".
    """
    vanilla = World(85).begin_at(recorded(producer=who(42, MAX - 2)))
    two_phase = World(73, 85).begin_at(recorded(producer=who(42, MAX - 2)))
    for world, recoveries in ((vanilla, 0), (two_phase, MAX + 1)):
        client = world.execute(init(two_phase=True)).producer
        world.execute(add(client))
        for _ in range(recoveries):
            client = world.execute(init(keep=True)).producer
        assert world.execute(end(client, COMMIT)).producer == who(85, 0)

        retry = world.step(end(client, COMMIT))

        assert retry.reply == Reply(producer=who(85, 0))
        assert not retry.facts


def test_an_overflow_past_the_kept_identity_takes_another_fresh_id() -> None:
    """The example ends at NextProducerEpoch=MAX; one more crash of the client must not overflow 16 bits."""
    world = World(73, 85).begin_at(recorded(producer=who(42, MAX - 1)))
    world.execute(add(who(42, MAX - 1)))
    for _ in range(MAX + 1):
        reply = world.execute(init(keep=True))
    assert reply.producer == who(73, MAX)

    reply = world.execute(init(keep=True))

    assert reply == Reply(producer=who(85, 0), ongoing=who(42, MAX - 1))
