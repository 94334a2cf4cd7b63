"""Which client gets memory, which is closed, and whom a client that goes leaves waiting. No thread, no socket."""

import asyncio
import gc
import weakref

from dualwrite.broker.net.connection_memory import ConnectionMemory
from tests.support.broker.frames import DeafClient, Peer, begun, handle, whole

MEBIBYTE = 1024 * 1024


async def steps() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


# --- requests


def test_free_memory_goes_to_the_address_that_holds_least() -> None:
    memory = ConnectionMemory(2 * MEBIBYTE)
    flood = [Peer(memory) for _ in range(5)]
    for peer in flood:
        peer.send(begun(MEBIBYTE))
    other = Peer(memory, "10.0.0.2")
    other.send(begun(MEBIBYTE))
    assert not other.is_reading
    flood[0].abort()
    assert other.is_reading
    assert [peer.is_reading for peer in flood[1:]] == [True, False, False, False]


def test_a_client_that_has_gone_is_forgotten_with_its_requests_and_its_answers() -> None:
    memory = ConnectionMemory(MEBIBYTE)

    async def served() -> "weakref.ref[Peer]":
        peer = Peer(memory)
        peer.send(whole(MEBIBYTE))
        await handle(peer)
        peer.stream.send([bytes(2 * MEBIBYTE)])
        assert peer.is_gone, "an answer larger than all memory, which it does not read"
        memory.release_answer(peer.stream)
        peer.stream.close()
        return weakref.ref(peer)

    reference = asyncio.run(served())
    gc.collect()
    assert reference() is None


# --- answers


def test_as_many_clients_are_closed_as_the_next_answer_takes() -> None:
    memory = ConnectionMemory(3 * MEBIBYTE)
    slow = [DeafClient() for _ in range(2)]
    for client in slow:
        memory.hold_answer(client, MEBIBYTE)
    other = DeafClient("10.0.0.2")
    memory.hold_answer(other, MEBIBYTE)
    late = DeafClient()
    late.active_at = 1.0
    memory.hold_answer(late, 2 * MEBIBYTE)
    assert [client.is_aborted for client in (*slow, other, late)] == [True, True, False, False]


def test_a_client_that_is_being_closed_costs_no_other_client_its_connection() -> None:
    """Its answer still takes memory, which is about to be free."""
    memory = ConnectionMemory(5 * MEBIBYTE // 2)
    closing, others = DeafClient(), [DeafClient("10.0.0.2") for _ in range(3)]
    memory.hold_answer(closing, 2 * MEBIBYTE)
    memory.hold_answer(others[0], MEBIBYTE)
    assert closing.is_aborted
    memory.hold_answer(others[1], MEBIBYTE)
    memory.hold_answer(others[2], MEBIBYTE // 4)
    assert not any(client.is_aborted for client in others)


def test_one_answer_at_a_time_is_built_when_memory_becomes_free() -> None:
    memory, built = ConnectionMemory(MEBIBYTE), []

    async def build(client: DeafClient) -> None:
        await memory.room_for_answers()
        built.append(client)
        memory.hold_answer(client, 2 * MEBIBYTE)

    async def scenario() -> None:
        first, clients = DeafClient(), [DeafClient() for _ in range(3)]
        memory.hold_answer(first, 2 * MEBIBYTE)
        building = [asyncio.ensure_future(build(client)) for client in clients]
        await steps()
        assert not built
        memory.release_answer(first)
        for number in range(3):
            await steps()
            assert len(built) == number + 1
            memory.release_answer(built[-1])
        await asyncio.gather(*building)

    asyncio.run(scenario())


def test_a_request_that_is_cancelled_takes_no_others_turn() -> None:
    async def scenario() -> None:
        memory, deaf = ConnectionMemory(MEBIBYTE), DeafClient()
        memory.hold_answer(deaf, 2 * MEBIBYTE)
        cancelled, waiting = (asyncio.ensure_future(memory.room_for_answers()) for _ in range(2))
        await steps()
        cancelled.cancel()
        await steps()
        assert not waiting.done()
        memory.release_answer(deaf)
        await asyncio.wait_for(waiting, 20)

    asyncio.run(scenario())
