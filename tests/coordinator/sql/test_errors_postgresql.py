"""What PostgreSQL's errors mean, by their SQLSTATE."""

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import DBAPIError

from dualwrite.coordinator.sql.dialects.base import ErrorMeaning
from dualwrite.coordinator.sql.dialects.postgresql.database import Postgresql

pytestmark = pytest.mark.postgresql

RAISED = "DO $$ BEGIN RAISE EXCEPTION '{}' USING ERRCODE = '{}'; END $$"


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
@pytest.mark.parametrize(
    ("statement", "meaning"),
    [
        ("SELECT * FROM nowhere", ErrorMeaning.NOT_READY),
        ("SELECT nothing", ErrorMeaning.NOT_READY),
        (RAISED.format("locked", "55P03"), ErrorMeaning.BUSY),
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
