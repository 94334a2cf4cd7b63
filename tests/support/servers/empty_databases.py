"""Empty databases on one PostgreSQL server, for one test after another.

To make a database costs PostgreSQL several times as much processor time as to empty one that has a few tables.
"""

import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, create_engine, make_url
from sqlalchemy.pool import NullPool

PATIENCE_SECONDS = 120

_OTHERS = "datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
_MADE = "oid >= 16384"  # PostgreSQL's own objects have lower ones
_TABLES = (
    "SELECT 'public.' || quote_ident(relname) FROM pg_class "
    f"WHERE {_MADE} AND relkind IN ('r', 'p') AND relnamespace = 'public'::regnamespace"
)
_SCHEMAS = f"SELECT quote_ident(nspname) FROM pg_namespace WHERE {_MADE} AND nspname !~ '^pg_'"
_CATALOGUES = ("pg_class", "pg_proc", "pg_type", "pg_namespace", "pg_extension", "pg_default_acl", "pg_event_trigger")
_REMAINS = (
    *(f"{catalogue} WHERE {_MADE}" for catalogue in _CATALOGUES),
    "pg_publication",
    "pg_largeobject_metadata",
    "pg_prepared_xacts WHERE database = current_database()",
    "pg_db_role_setting JOIN pg_database d ON d.oid = setdatabase WHERE datname = current_database()",
    "pg_database WHERE datname = current_database() AND datacl IS NOT NULL",
    *(
        f"{catalogue} LEFT JOIN pg_init_privs ON objoid = oid AND classoid = '{catalogue}'::regclass AND objsubid = 0 "
        f"WHERE {rights} IS DISTINCT FROM initprivs"
        for catalogue, rights in (("pg_namespace", "nspacl"), ("pg_proc", "proacl"), ("pg_class", "relacl"))
    ),
)


class EmptyDatabases:
    """Makes databases on the server at ``url``, and keeps those that it could empty."""

    def __init__(self, url: str) -> None:
        self._server_url = make_url(url)
        self._empty: list[str] = []
        self._as_new: tuple[int, ...] = ()
        """The contents of a database that was just made."""

    def take(self) -> str:
        """The URL of an empty database."""
        if self._empty:
            return self._empty.pop()
        name = f"test_{uuid.uuid4().hex}"
        self._run(f"CREATE DATABASE {name}")
        url = self._server_url.set(database=name).render_as_string(hide_password=False)
        self._as_new = self._as_new or emptied(url)
        return url

    def give_back(self, url: str) -> None:
        """Empty the database at ``url`` for the next test, or drop it if more than tables and schemas is left in it."""
        if emptied(url) == self._as_new:
            self._empty.append(url)
        else:
            self._drop(url)

    def close(self) -> None:
        """Leave nothing."""
        while self._empty:
            self._drop(self._empty.pop())

    def _drop(self, url: str) -> None:
        self._run(f"DROP DATABASE {make_url(url).database} WITH (FORCE)")

    def _run(self, statement: str) -> None:
        with connected(self._server_url.render_as_string(hide_password=False)) as connection:
            connection.exec_driver_sql(statement)


def emptied(url: str) -> tuple[int, ...]:
    """End the sessions in the database at ``url`` and drop its tables and schemas; return how much else it has."""
    with connected(url) as connection:
        end_sessions(connection)
        for kind, query in (("TABLE", _TABLES), ("SCHEMA", _SCHEMAS)):
            names = connection.exec_driver_sql(query).scalars().all()
            if names:
                drop = f"DROP {kind} {', '.join(names)} CASCADE"
                connection.exec_driver_sql(drop, execution_options={"no_parameters": True})  # a name may have a %
        counts = ", ".join(f"(SELECT count(*) FROM {remains})" for remains in _REMAINS)
        return tuple(connection.exec_driver_sql(f"SELECT {counts}").one())


def end_sessions(connection: Connection) -> None:
    """End the other sessions in the database of ``connection``, and wait until none is left."""
    patience = time.monotonic() + PATIENCE_SECONDS
    while connection.exec_driver_sql(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {_OTHERS}").all():
        assert time.monotonic() < patience, "a session does not end"
        time.sleep(0.005)


@contextmanager
def connected(url: str) -> Iterator[Connection]:
    """A connection on which each statement is a transaction; it is closed at the end of the block."""
    engine = create_engine(url, isolation_level="AUTOCOMMIT", poolclass=NullPool)
    with engine.connect() as connection:
        yield connection
