"""Whether the table of a batch that is run again has rows at all."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Connection, create_engine

from dualwrite.errors import BatchChangedError
from dualwrite.spark.known.targets import require_rows_there


@pytest.fixture
def connection() -> Iterator[Connection]:
    """With an empty table."""
    engine = create_engine("sqlite://")
    with engine.connect() as connection:
        connection.exec_driver_sql("CREATE TABLE things (id INTEGER)")
        yield connection
    engine.dispose()


def test_an_empty_table_is_refused_unless_the_batch_had_no_row(connection: Connection) -> None:
    require_rows_there(connection, "batch 1", 0, "things")
    with pytest.raises(BatchChangedError, match=r"^batch 1 was written with 3 rows, and table things is empty: give"):
        require_rows_there(connection, "batch 1", 3, "things")
    connection.exec_driver_sql("INSERT INTO things VALUES (1)")
    require_rows_there(connection, "batch 1", 3, "things")


def test_a_table_that_may_not_be_read_passes(connection: Connection, caplog: pytest.LogCaptureFixture) -> None:
    """A login may have the right to write it, and no other."""
    with caplog.at_level("INFO", "dualwrite"):
        require_rows_there(connection, "batch 1", 3, "others")
    assert "batch 1: it is not known whether its rows are in others: " in caplog.text
