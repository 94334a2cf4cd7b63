"""A database named on the command line: its mistakes in one line, without its password."""

import re
import sqlite3
import sys
from pathlib import Path

import pytest
from sqlalchemy import create_engine, inspect, make_url, text

from dualwrite.cli.database import database
from dualwrite.cli.db import current, upgrade, upgrade_engine
from dualwrite.coordinator.sql.dialects.supported import database_at
from dualwrite.errors import ConfigurationError


def use(url: str, statement: str = "SELECT 1", *, must_exist: bool = False) -> None:
    with database(url, must_exist=must_exist) as engine, engine.connect() as connection:
        connection.execute(text(statement))


@pytest.mark.parametrize("url", ["orders.db", "", "nosuch://host/x", "postgresql+psycopg://host:port/x"])
def test_an_invalid_database_url_is_refused(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError):
        use(url)


@pytest.mark.parametrize(
    ("url", "example"),
    [
        ("sqlite+aiosqlite:///orders.db", "sqlite:///orders.db"),
        ("postgresql+asyncpg://host/x", "postgresql+psycopg://"),
        ("mariadb+aiomysql://host/x", "mysql+pymysql://"),
    ],
)
def test_a_driver_for_asyncio_is_refused_and_a_blocking_one_named(url: str, example: str) -> None:
    with pytest.raises(
        ConfigurationError, match=re.escape(f"for asyncio: use a blocking driver here, such as {example}")
    ):
        use(url)


def test_a_missing_sqlite_file_is_not_created(tmp_path: Path) -> None:
    path = tmp_path / "orders.db"
    with pytest.raises(ConfigurationError, match=r"there is no database file .*orders\.db; run: dualwrite db upgrade"):
        use(f"sqlite:///{path}", must_exist=True)
    assert not path.exists()


def test_the_directory_of_a_file_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=rf"there is no directory {re.escape(str(tmp_path))}/nowhere$"):
        upgrade(f"sqlite:///{tmp_path}/nowhere/orders.db")


def test_a_postgres_url_is_refused_with_the_correct_scheme() -> None:
    said = r"'postgres://' is not a SQLAlchemy URL: write postgresql\+psycopg://…"
    with pytest.raises(ConfigurationError, match=said):
        use("postgres://user:secret@host/x")


@pytest.mark.parametrize("backend", ["mysql", "mariadb"])
def test_a_url_without_a_database_is_refused(backend: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        use(f"{backend}+pymysql://user:secret@host")
    assert str(refused.value) == f"the URL names no database: {backend}+pymysql://user:***@host/NAME"


@pytest.mark.mariadb
def test_a_schema_is_a_database_too(mariadb_url: str) -> None:
    url = make_url(mariadb_url)
    bare = url.set(database=None).render_as_string(hide_password=False)
    assert upgrade(bare, schema=url.database) == current(mariadb_url)


def test_only_a_plain_file_name_must_exist(tmp_path: Path) -> None:
    use(f"sqlite:///file:{tmp_path / 'new.db'}?uri=true", "CREATE TABLE t (id INTEGER)", must_exist=True)
    assert (tmp_path / "new.db").exists()
    with pytest.raises(ConfigurationError, match="there is no database file"):
        use(f"sqlite:///{tmp_path / 'other.db'}", must_exist=True)


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:///file::memory:?cache=shared&uri=true",
        "sqlite:///file:x?mode=memory&cache=shared&uri=true",
        "sqlite:///file:/x?vfs=memdb&uri=true",
    ],
)
def test_a_sqlite_database_in_memory_is_refused(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match="is a SQLite database in memory") as refused:
        upgrade(url)
    assert "\n" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("driver", "url", "example"),
    [
        ("aiosqlite", "sqlite+aiosqlite:///x.db", "sqlite:///orders.db"),
        ("asyncpg", "postgresql+asyncpg://u@h/x", "postgresql+psycopg://user@host/name"),
        ("aiomysql", "mariadb+aiomysql://u@h/x", "mysql+pymysql://user@host/name"),
    ],
)
@pytest.mark.parametrize("is_there", [True, False], ids=["installed", "not installed"])
def test_a_driver_for_asyncio_is_refused_installed_or_not(
    driver: str, url: str, example: str, is_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_there:
        monkeypatch.setitem(sys.modules, driver, None)
    message = f"^{driver} is a driver for asyncio: use a blocking driver here, such as {re.escape(example)}$"
    with pytest.raises(ConfigurationError, match=message):
        use(url)


def test_a_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pg8000", None)
    with pytest.raises(ConfigurationError, match=r"the driver of postgresql\+pg8000 is not installed: pg8000"):
        use("postgresql+pg8000://host/x")


@pytest.mark.parametrize("url", ["mssql+pyodbc://host/x", "oracle://host/x"])
def test_a_database_that_is_not_supported_is_named_rather_than_its_driver(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"is not supported: use SQLite, PostgreSQL, MariaDB or MySQL"):
        use(url)


def test_an_error_of_the_database_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as refused:
        use(f"sqlite:///{tmp_path / 'x.db'}", "SELECT x.absent FROM (SELECT 1) x")
    assert str(refused.value) == f"database sqlite:///{tmp_path / 'x.db'}: no such column: x.absent"


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("chrset=utf8mb4", "unexpected keyword argument 'chrset'"),
        ("charset=utf", "encoding"),
        ("ssl_ca=/nowhere/ca.pem", "No such file or directory"),
        ("read_timeout=0", "read_timeout should be > 0"),
    ],
)
def test_an_option_that_the_driver_refuses_is_one_line(option: str, said: str) -> None:
    """PyMySQL raises TypeError, AttributeError, FileNotFoundError and ValueError, before it connects."""
    with pytest.raises(ConfigurationError, match=re.escape(said)) as refused:
        use(f"mysql+pymysql://me:secret@127.0.0.1:1/x?{option}")
    assert str(refused.value).startswith("database mysql+pymysql://me:***@127.0.0.1:1/x?")
    assert "no connection with these options: " in str(refused.value)


def test_an_unreachable_database_is_one_line_without_its_password() -> None:
    with pytest.raises(ConfigurationError) as refused:
        use("postgresql+psycopg://me:secret@127.0.0.1:1/x")
    message = str(refused.value)
    assert message.startswith("database postgresql+psycopg://me:***@127.0.0.1:1/x: ")
    assert "secret" not in message
    assert "\n" not in message


def test_other_errors_pass(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), database(f"sqlite:///{tmp_path / 'x.db'}", must_exist=False):
        raise ZeroDivisionError


def place_of(url: str) -> str:
    parsed = make_url(url)
    return database_at(parsed).server_of(parsed)


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("postgresql+psycopg://u:p@h:5432/n", "postgresql:h:5432:n"),
        ("postgresql+psycopg2://other@h:5432/n?sslmode=require", "postgresql:h:5432:n"),
        ("postgresql+psycopg://u@/n?host=/run/pg&port=5433", "postgresql:/run/pg:5433:n"),
        ("mysql+pymysql://u:p@h:3306/n", "mysql:h:3306:n"),
        ("mariadb+pymysql://other@h:3306/n?charset=utf8mb4", "mysql:h:3306:n"),
        ("mysql+mysqldb://u@localhost/n?unix_socket=/run/my", "mysql:/run/my::n"),
        ("sqlite:////data/a.db", "sqlite:/data/a.db"),
        ("sqlite:////data/x/../a.db", "sqlite:/data/a.db"),
        ("sqlite:///file:/data/a.db?uri=true", "sqlite:file:/data/a.db"),
    ],
)
def test_the_place_of_a_database_does_not_depend_on_the_user(url: str, place: str) -> None:
    assert place_of(url) == place


def test_a_relative_file_is_known_by_its_full_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert place_of("sqlite:///a.db") == f"sqlite:{tmp_path.resolve() / 'a.db'}"


def test_tables_are_made_through_an_engine_that_its_url_does_not_describe(tmp_path: Path) -> None:
    engine = create_engine("sqlite://", creator=lambda: sqlite3.connect(tmp_path / "orders.db"))
    version = upgrade_engine(engine)
    assert (version, upgrade_engine(engine)) == (current(f"sqlite:///{tmp_path / 'orders.db'}"), version)
    assert inspect(engine).has_table("kafka_transaction_state")
    engine.dispose()
