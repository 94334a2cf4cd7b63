"""The table of staged rows keeps and compares texts as its target does."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from sqlalchemy import Engine, inspect, text

from dualwrite.errors import InputError
from dualwrite.spark.batch.runs import RUN_COLUMN, Run
from dualwrite.spark.batch.staging import Attempt, drop_outdated, make_staging, move_rows, staged_clause
from dualwrite.spark.error_translation import database_errors_translated
from dualwrite.spark.tables.bulk_load import Loader
from dualwrite.spark.tables.target_table import target_of
from tests.spark.conftest import ready

pytestmark = pytest.mark.slow_cases("mariadb")

COLLATIONS = "CHARACTER SET utf8mb4 COLLATE"


@pytest.fixture
def mariadb(mariadb_url: str) -> Iterator[Engine]:
    yield from ready(mariadb_url)


def columns_of(engine: Engine) -> Sequence[Any]:
    with engine.connect() as connection:
        return target_of(connection, "words").columns


def upsert(engine: Engine, rows: Sequence[tuple[str, int]]) -> set[tuple[str, int]]:
    """What is in the table after one run has upserted ``rows``."""
    columns = columns_of(engine)
    run = Run("job", 7, make_staging(engine, "words", columns).qualified_name)
    with engine.begin() as connection:
        staged = staged_clause(run.staging, "words", columns)
        Loader(connection, staged).write([(7, 0, 1, number, *row) for number, row in enumerate(rows)])
        move_rows(connection, run, "words", columns, ["word"], [Attempt(0, 1, len(rows))])
        connection.execute(staged.delete().where(staged.c[RUN_COLUMN] == 7))
        return {tuple(row) for row in connection.execute(text("SELECT word, seen FROM words"))}


def execute(engine: Engine, statement: str) -> None:
    with engine.begin() as connection:
        connection.exec_driver_sql(statement)


@pytest.mark.mariadb
def test_a_target_with_another_collation_by_now_loses_no_row(mariadb: Engine) -> None:
    execute(mariadb, f"CREATE TABLE words (word VARCHAR(9) PRIMARY KEY, seen INT) {COLLATIONS} utf8mb4_general_ci")
    assert upsert(mariadb, [("a", 1), ("A", 2)]) == {("A", 2)}
    execute(mariadb, f"ALTER TABLE words CONVERT TO {COLLATIONS} utf8mb4_bin")
    assert upsert(mariadb, [("b", 1), ("B", 2)]) == {("A", 2), ("b", 1), ("B", 2)}
    drop_outdated(mariadb, "words", lambda _: False)
    assert len([name for name in inspect(mariadb).get_table_names() if name.startswith("dualwrite_staged")]) == 1


@pytest.mark.mariadb
def test_a_target_that_has_a_larger_character_set_by_now_takes_its_texts(mariadb: Engine) -> None:
    execute(mariadb, "CREATE TABLE words (word VARCHAR(9) PRIMARY KEY, seen INT) CHARACTER SET latin1")
    assert upsert(mariadb, [("tea", 1)]) == {("tea", 1)}
    execute(mariadb, f"ALTER TABLE words CONVERT TO {COLLATIONS} utf8mb4_bin")
    assert upsert(mariadb, [("\U0001f375", 1)]) == {("tea", 1), ("\U0001f375", 1)}


def test_of_rows_that_only_the_target_takes_for_one_key_the_last_one_counts(sqlite: Engine) -> None:
    execute(sqlite, "CREATE TABLE words (word VARCHAR(9) COLLATE NOCASE PRIMARY KEY, seen INT)")
    assert {seen for _, seen in upsert(sqlite, [("b", 1), ("B", 2)])} == {2}
    assert {seen for _, seen in upsert(sqlite, [("B", 3), ("b", 4)])} == {4}


@pytest.mark.mariadb
@pytest.mark.parametrize(
    ("definition", "value"),
    [
        ("seen TIMESTAMP NULL", "'0001-01-01'"),
        ("seen INT) PARTITION BY RANGE (seen) (PARTITION few VALUES LESS THAN (10)", "20"),
    ],
    ids=["time", "partition"],
)
def test_a_value_that_the_target_cannot_have_is_refused_in_one_line(
    mariadb: Engine, definition: str, value: str
) -> None:
    execute(mariadb, f"CREATE TABLE words ({definition})")
    refused = pytest.raises(InputError, match=r"^job 'job': the database refuses a row: .*$")
    with refused, database_errors_translated("job 'job'"):
        execute(mariadb, f"INSERT INTO words VALUES ({value})")
