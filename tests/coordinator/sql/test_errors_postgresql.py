"""What PostgreSQL's errors mean, by their SQLSTATE, and what is shown of those at the beginning of a transaction."""

import asyncio

import pytest
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine

from dualwrite.coordinator.sql.dialects.base import ErrorMeaning
from dualwrite.coordinator.sql.dialects.postgresql.database import Postgresql
from dualwrite.coordinator.sql.dialects.unit_transactions import begin_with

pytestmark = pytest.mark.postgresql

RAISED = "DO $$ BEGIN RAISE EXCEPTION '{}' USING ERRCODE = '{}'; END $$"


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
@pytest.mark.parametrize(
    ("statement", "meaning"),
    [
        ("SELECT * FROM nowhere", ErrorMeaning.NOT_READY),
        ("SELECT nothing", ErrorMeaning.NOT_READY),
        (RAISED.format("locked", "55P03"), ErrorMeaning.BUSY),
        (RAISED.format("canceled", "57014"), ErrorMeaning.TOO_LONG),
        (RAISED.format("serialize", "40001"), ErrorMeaning.CONFLICT),
        (RAISED.format("deadlock", "40P01"), ErrorMeaning.CONFLICT),
        (RAISED.format("failed", "25P02"), ErrorMeaning.FAILED),
        ("SELEC", None),
        # A value of the user's, as in the message about a unique key, is not asyncpg's own word.
        (RAISED.format("Key (name)=(another operation is in progress) already exists", "23505"), None),
    ],
)
def test_errors_are_classified_by_their_sqlstate(
    postgresql_url: str, driver: str, statement: str, meaning: ErrorMeaning | None
) -> None:
    engine = create_engine(postgresql_url.replace("+psycopg", f"+{driver}"))
    try:
        with engine.connect() as connection, pytest.raises(DBAPIError) as raised:
            connection.execute(text(statement))
        assert Postgresql().meaning_of(raised.value) is meaning
    finally:
        engine.dispose()


def require_reason(connection: Connection) -> None:
    with pytest.raises(DBAPIError, match='invalid value for parameter "TimeZone": "nowhere"'):
        begin_with(connection, ["SET dualwrite.unit = 'a'", "SET timezone = 'nowhere'"])


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
@pytest.mark.parametrize("is_begun", [False, True])
def test_a_statement_that_is_refused_at_the_beginning_shows_the_servers_reason(
    postgresql_url: str, driver: str, is_begun: bool
) -> None:
    """And not only that the transaction has failed, which is all that the server says of the statements afterwards."""
    engine = create_engine(postgresql_url.replace("+psycopg", f"+{driver}"))
    with engine.connect() as connection, connection.begin():
        if is_begun:  # by a listener
            connection.exec_driver_sql("SET LOCAL app.tenant = 'acme'")
        require_reason(connection)
    engine.dispose()


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_a_statement_that_is_refused_at_the_beginning_shows_the_servers_reason_under_asyncio(
    postgresql_url: str, driver: str
) -> None:
    async def main() -> None:
        engine = create_async_engine(postgresql_url.replace("+psycopg", f"+{driver}"))
        async with engine.connect() as connection, connection.begin():
            await connection.run_sync(require_reason)
        await engine.dispose()

    asyncio.run(main())
