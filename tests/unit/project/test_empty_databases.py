"""The database that a test gets is empty, whatever the test before it has left there."""

from collections.abc import Iterator

import pytest
from sqlalchemy import create_engine, inspect

from tests.support.servers.empty_databases import EmptyDatabases, connected

pytestmark = pytest.mark.postgresql


@pytest.fixture
def databases(postgresql_server: str) -> Iterator[EmptyDatabases]:
    made = EmptyDatabases(postgresql_server)
    yield made
    made.close()


def after(databases: EmptyDatabases, *statements: str) -> tuple[str, str]:
    """The database in which ``statements`` were run, and the next one."""
    first = databases.take()
    with connected(first) as connection:
        for statement in statements:
            connection.exec_driver_sql(statement.replace("HERE", str(connection.engine.url.database)))
    databases.give_back(first)
    following = databases.take()
    databases.give_back(following)
    return first, following


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    "statements",
    [
        (),
        (
            "CREATE TABLE a (id serial PRIMARY KEY)",
            'CREATE TABLE "B b" (id int REFERENCES a)',
            "CREATE VIEW v AS TABLE a",
        ),
        ('CREATE TABLE "100%%" (id int)',),
        ('CREATE SCHEMA "S s"', 'CREATE TABLE "S s".t (id int)', 'CREATE SEQUENCE "S s".q'),
    ],
)
def test_a_database_with_tables_and_schemas_is_emptied_for_the_next_test(
    databases: EmptyDatabases, statements: tuple[str, ...]
) -> None:
    first, following = after(databases, *statements)
    assert following == first
    with connected(following) as connection:
        assert inspect(connection).get_table_names() == []
        assert inspect(connection).get_view_names() == []
        assert inspect(connection).get_schema_names() == ["information_schema", "public"]


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    "statement",
    [
        "ALTER DATABASE HERE SET DateStyle = German",
        "GRANT CREATE ON DATABASE HERE TO PUBLIC",
        "REVOKE USAGE ON SCHEMA public FROM PUBLIC",
        "REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC",
        "ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO PUBLIC",
        "CREATE FUNCTION one() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "CREATE TYPE colour AS ENUM ('red')",
        "CREATE SEQUENCE numbers",
        "SELECT lo_create(1)",
    ],
)
def test_a_database_with_anything_else_is_not_used_again(databases: EmptyDatabases, statement: str) -> None:
    first, following = after(databases, statement)
    assert following != first


def test_a_session_that_a_test_has_left_open_is_ended(databases: EmptyDatabases) -> None:
    first = databases.take()
    left = create_engine(first)
    with left.connect() as connection:
        connection.exec_driver_sql("CREATE TABLE a (id int)")
        databases.give_back(first)
        with pytest.raises(Exception, match=r"terminating connection|server closed the connection"):
            connection.exec_driver_sql("SELECT 1")
        connection.invalidate()
    left.dispose()
    assert databases.take() == first
    databases.give_back(first)
