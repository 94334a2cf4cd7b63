"""Under asyncio: a database server that is down, or that loses a unit's connection."""

import socket
import threading
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import insert, make_url
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import create_async_engine

from dualwrite.coordinator.aio.transaction import AsyncTransaction
from dualwrite.errors import ConfigurationError, DatabaseUnavailableError
from tests.support.coordinator.aio.async_dual_writes import AsyncPlace, run, write_unit
from tests.support.coordinator.event_table import events, stored_values
from tests.support.servers.sessions import kill_session, session_of


def killing(place: AsyncPlace) -> Any:
    """Let the server end the session of the unit."""

    async def act(tx: AsyncTransaction) -> None:
        pooled = await tx.connection.get_raw_connection()
        kill_session(place.seen, session_of(pooled.driver_connection))

    return act


async def insert_two(tx: AsyncTransaction) -> None:
    await tx.execute(insert(events).values(value="two"))


@pytest.mark.slow_cases
@pytest.mark.parametrize("acts", [[insert_two], []], ids=["in the block", "at its end"])
def test_a_lost_connection_is_the_librarys_error(server_place: AsyncPlace, acts: list[Any]) -> None:
    place = server_place

    async def main() -> None:
        async with place.dual_write() as dual_write:
            with pytest.raises(DatabaseUnavailableError, match="lost") as caught:
                await write_unit(dual_write, "one", killing(place), *acts)
            assert caught.value.retriable
            assert caught.value.__cause__ is not None
            await write_unit(dual_write, "three")

    run(main())
    assert place.in_both("three")


def require_unavailable(place: AsyncPlace, port: int) -> None:
    """Units of work and recovery say that no server can be reached at ``port``."""

    async def main() -> None:
        engine = create_async_engine(make_url(place.url).set(host="127.0.0.1", port=port, query={}))
        async with place.dual_write(engine) as dual_write:
            with pytest.raises(DatabaseUnavailableError, match="no connection to") as caught:
                await write_unit(dual_write, "one")
            assert caught.value.retriable
            with pytest.raises(DatabaseUnavailableError, match="no connection to"):
                await dual_write.recover()
        await engine.dispose()

    run(main())


def test_a_server_that_is_down_is_the_librarys_error(server_place: AsyncPlace) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    require_unavailable(server_place, port)


def test_a_server_that_dies_while_a_client_connects_is_the_librarys_error(server_place: AsyncPlace) -> None:
    with socket.create_server(("127.0.0.1", 0)) as dying:
        threading.Thread(target=hang_up, args=(dying,), daemon=True).start()
        require_unavailable(server_place, dying.getsockname()[1])


def hang_up(listener: socket.socket) -> None:
    """Close each connection when its client has said something; without TLS, if PostgreSQL's asks for it."""
    with suppress(OSError):  # the listener was closed
        while True:
            client, _ = listener.accept()
            with client, suppress(ConnectionError):
                client.settimeout(0.5)
                with suppress(TimeoutError):  # MySQL's waits for the server
                    if client.recv(8).endswith(b"\x04\xd2\x16\x2f"):
                        client.sendall(b"N")
                        client.recv(1000)


def test_a_database_that_does_not_exist_is_a_wrong_setting(server_place: AsyncPlace) -> None:
    async def main() -> None:
        engine = create_async_engine(make_url(server_place.url).set(database="never_made"))
        async with server_place.dual_write(engine) as dual_write:
            with pytest.raises(ConfigurationError, match="never_made"):
                await write_unit(dual_write, "one")
        await engine.dispose()

    run(main())


def test_a_constraint_that_is_violated_is_the_users(place: AsyncPlace) -> None:
    async def main() -> None:
        async with place.dual_write() as dual_write:
            await write_unit(dual_write, "one")
            with pytest.raises(IntegrityError):
                await write_unit(dual_write, "one")

    run(main())
    assert stored_values(place.seen) == ["one"]
