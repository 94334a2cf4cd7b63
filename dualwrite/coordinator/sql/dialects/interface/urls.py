"""A database's URL, and how its driver connects."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import URL


class DatabaseUrls:
    """The part of Database that needs no connection."""

    title: str
    """The database's name in messages. Each database has one."""

    example_url: str
    """A URL with the driver that messages recommend. Each database has one."""

    blocking_drivers: Mapping[str, str] = {}
    """The blocking driver to show in place of each driver for asyncio; "" for SQLAlchemy's default."""

    is_file = False
    """True if the database is a file of this machine, used without a network: requests need no time limit, no other
    machine can reach it, and a copy of it may lie beside a copy of the broker's directory."""

    def file_of(self, url: URL) -> str | None:
        """The path of the database's file, if ``url`` names one. Override it where ``is_file``."""
        return None

    def missing_directory(self, url: URL) -> Path | None:
        """The directory of the database's file, if ``url`` names a file and there is no such directory."""
        file = self.file_of(url)
        directory = None if file is None else Path(file).parent
        return None if directory is None or directory.is_dir() else directory.absolute()

    def is_in_memory(self, url: URL) -> bool:
        """True if ``url`` names a database that ends with the process."""
        return False

    def server_of(self, url: URL) -> str:
        """The server and the database name of ``url``, or a file's full path; the user and the driver do not matter.
        A load is resumed only in the same place, so it may never change. Override it if a URL can name a server by
        other means than a host and a port."""
        return f"{url.get_backend_name()}:{host_of(url)}:{port_of(url)}:{url.database or ''}"

    def require_named(self, url: URL) -> None:
        """Require that ``url`` names a database. Override it if a server has no default database.

        :raises ConfigurationError: if it does not; the message shows the URL to use.
        """

    def exact_connections(self, url: URL, patience: float) -> Mapping[str, Any]:
        """The driver's arguments (``connect_args``) for connections that store every value unchanged, independent of
        the server's settings. Override it if the driver needs some.

        :param patience: seconds to wait for the turn to write, where there is :attr:`Database.one_writer`.
        """
        return {}

    exact_session: Sequence[str] = ()
    """Statements with the same purpose, which run on each new connection."""

    def connect_limit(self, url: URL, usual: float) -> float:
        """The seconds after which a command gives up an attempt to connect to a server that stays silent: ``usual``, or
        what ``url`` says instead; infinite if by ``url`` the driver itself gives up. Override it for a server."""
        return usual

    def is_away(self, error: BaseException) -> bool:
        """True if ``error``, SQLAlchemy's or the driver's, of an attempt to connect, means that the server cannot be
        reached now, so that another attempt may succeed; False if the URL is likely to be wrong. Override it for a
        server."""
        return False


def host_of(url: URL) -> str:
    """The host in ``url``, which may be in its query."""
    return str(url.host or url.query.get("host", ""))


def seconds_in(url: URL, name: str) -> float:
    """The timeout ``name`` in the query of ``url``; 0 if there is none, which also means that the driver has none."""
    try:
        return max(0.0, float(str(url.query.get(name, 0))))
    except ValueError:
        return 0.0  # the driver says so


def port_of(url: URL) -> str:
    """The port in ``url``, which may be in its query."""
    return str(url.port or url.query.get("port", ""))
