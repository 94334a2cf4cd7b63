"""The doctor names each timeout without which a silent database holds a unit of work for ever, and how to set it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text

from dualwrite.operations.findings import Finding, Level
from dualwrite.operations.timeout_checks import check_timeouts
from tests.support.servers.round_trip_proxy import TurnsProxy


def found(engine: Engine) -> dict[str, Finding]:
    """Warnings by the setting that they name."""
    return {finding.message.split()[0]: finding for finding in check_timeouts(engine) if finding.level is Level.WARNING}


def look(url: Any, **options: Any) -> dict[str, Finding]:
    engine = create_engine(url, **options)
    try:
        return found(engine)
    finally:
        engine.dispose()


@pytest.fixture
def postgresql_by_tcp(postgresql_url: str) -> Iterator[Any]:
    proxy = TurnsProxy(postgresql_url)
    yield proxy.url
    proxy.close()


@pytest.fixture
def mariadb_by_tcp(mariadb_url: str) -> Iterator[Any]:
    proxy = TurnsProxy(mariadb_url)
    yield proxy.url
    proxy.close()


TCP = ("connect_timeout", "tcp_user_timeout", "keepalives_idle")
SESSION = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")


def test_sqlite_has_no_findings(tmp_path: Path) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'app.db'}")
    assert list(check_timeouts(engine)) == []
    engine.dispose()


@pytest.mark.postgresql
def test_a_bare_postgresql_url_gets_a_warning_for_every_timeout(postgresql_by_tcp: Any) -> None:
    warnings = look(postgresql_by_tcp)
    assert set(warnings) == {*TCP, *SESSION}
    assert "tcp_user_timeout=30000" in warnings["tcp_user_timeout"].advice
    assert warnings["statement_timeout"].advice == "ALTER ROLE dualwrite SET statement_timeout = '60s'"


@pytest.mark.postgresql
def test_following_the_advice_silences_it(postgresql_by_tcp: Any) -> None:
    """As it is said: in the URL's query, and to the role."""
    warnings = look(postgresql_by_tcp)
    query = {}
    owner = create_engine(postgresql_by_tcp, isolation_level="AUTOCOMMIT")
    with owner.connect() as connection:
        for name, warned in warnings.items():
            if name in SESSION:
                connection.execute(text(warned.advice))
            else:
                asked = warned.advice.removeprefix("add ").partition(" ")[0]
                query.update(dict(pair.split("=") for pair in asked.split("&")))
    try:
        engine = create_engine(postgresql_by_tcp.update_query_dict(query))
        findings = list(check_timeouts(engine))
        engine.dispose()
        assert [finding.level for finding in findings] == [Level.OK]
    finally:
        with owner.connect() as connection:
            for name in SESSION:
                connection.execute(text(f"ALTER ROLE dualwrite RESET {name}"))
        owner.dispose()


@pytest.mark.postgresql
def test_timeouts_in_connect_args_count(postgresql_by_tcp: Any) -> None:
    told = {"connect_timeout": 5, "tcp_user_timeout": 5000, "keepalives_idle": 10}
    assert set(look(postgresql_by_tcp, connect_args=told)) == set(SESSION)


@pytest.mark.postgresql
def test_keepalives_that_are_off_are_named(postgresql_by_tcp: Any) -> None:
    told = {"connect_timeout": 5, "tcp_user_timeout": 5000, "keepalives_idle": 10, "keepalives": 0}
    assert set(look(postgresql_by_tcp, connect_args=told)) == {*SESSION, "keepalives"}


@pytest.mark.postgresql
def test_a_unix_socket_has_no_findings_about_tcp(postgresql_url: str) -> None:
    if "host=" not in postgresql_url:
        pytest.skip("the server is reached by TCP")
    assert set(look(postgresql_url)) == {"connect_timeout", *SESSION}


@pytest.mark.mariadb
def test_a_bare_mariadb_url_gets_a_warning_for_the_drivers_timeouts(mariadb_by_tcp: Any) -> None:
    """PyMySQL has a limit of its own for a new connection."""
    warnings = look(mariadb_by_tcp)
    assert set(warnings) == {"read_timeout", "write_timeout", "idle_write_transaction_timeout"}
    assert "read_timeout=60" in warnings["read_timeout"].advice
    assert "wait_timeout (28800 s)" in warnings["idle_write_transaction_timeout"].message


@pytest.mark.mariadb
@pytest.mark.parametrize("way", ["query", "connect_args"])
def test_pymysqls_timeouts_are_found_wherever_they_are_set(mariadb_by_tcp: Any, way: str) -> None:
    if way == "query":
        warnings = look(mariadb_by_tcp.update_query_dict({"read_timeout": "60", "write_timeout": "60"}))
    else:
        warnings = look(mariadb_by_tcp, connect_args={"read_timeout": 60, "write_timeout": 60})
    assert set(warnings) == {"idle_write_transaction_timeout"}


@pytest.mark.mariadb
def test_pymysqls_connect_timeout_is_missed_where_it_was_taken_away(mariadb_by_tcp: Any) -> None:
    assert "connect_timeout" in look(mariadb_by_tcp, creator=lambda: _without_timeout(mariadb_by_tcp))


def _without_timeout(url: Any) -> Any:
    import pymysql

    made = pymysql.connect(host=url.host, port=url.port, user=url.username, database=url.database)
    made.connect_timeout = None
    return made
