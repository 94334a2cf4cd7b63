"""Facts about a database server: its version, its identity, and settings that weaken the promise."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection

from dualwrite.coordinator.rules.identities import TwoPartIdentity


@dataclass(frozen=True, slots=True)
class DurabilityGap:
    """A setting with which a crash can undo a successful COMMIT.

    Log its ``str()``, not itself: logging swallows what a signal handler raises while it formats a message.

    :param setting: as the database spells it, with its value.
    :param meaning: what can happen.
    :param advice: what to do about it.
    """

    setting: str
    meaning: str
    advice: str

    def __str__(self) -> str:
        return f"{self.setting}: {self.meaning}; {self.advice}"


@dataclass(frozen=True, slots=True)
class MissingTimeout:
    """A timeout of the driver or of the server that is not set.

    :param setting: as the driver or the server spells it.
    :param meaning: what can happen.
    :param advice: how to set it.
    """

    setting: str
    meaning: str
    advice: str


class DatabaseServer:
    """The part of Database that an operator, the doctor and recovery ask."""

    def version(self, connection: Connection) -> str:
        """What the server, or the library, calls itself."""
        numbers = connection.dialect.server_version_info or ()
        return f"{connection.dialect.name} {'.'.join(map(str, numbers))}".strip()

    def identity(self, connection: Connection, schema: str | None) -> str | None:
        """The identity that distinguishes the state table's database from its copies; None if there is none. It is in
        the state rows: its form may not change, and begins with a word and a colon. Override it: without an identity a
        copy of the database aborts the original's transactions.

        :param schema: of the state table.
        """
        return None

    def file_beside(self, connection: Connection, identities: Sequence[str]) -> Path | None:
        """A file in the directory of the database's own that has one of ``identities``. Override it where the database
        :attr:`is_file`."""
        return None

    halved_identity: TwoPartIdentity | None = None
    """The form of :meth:`identity`, if one half of it may change while the database stays the same."""

    how_to_identify = "its dialect has no identity"
    """What an operator must do if :meth:`identity` is None."""

    def require_suitable(self, connection: Connection, schema: str | None = None) -> None:
        """Look at the server's settings and the state table, once per engine; warn of what weakens the promise.
        Override it if there are such settings, or if a dual write may not work.

        :param schema: of the state table.

        :raises ConfigurationError: if a dual write cannot work there.
        """

    def durability_gaps(self, connection: Connection) -> list[DurabilityGap]:
        """Settings of the server, or of the connection, that weaken the promise, for the doctor."""
        return []

    def pooling(self, connection: Connection) -> list[DurabilityGap]:
        """Uses of the driver that do not work through a pooler, such as prepared statements."""
        return []

    def unusable_sequences(self, connection: Connection, table: str, schema: str | None) -> list[str]:
        """The sequences that number the rows of ``table``, and that this login may not use, although it may insert."""
        return []

    def missing_timeouts(self, connection: Connection) -> Iterator[MissingTimeout]:
        """Missing timeouts of the driver and of the server: without them a frozen server, or a network that drops all
        packets, blocks a unit of work for ever. Not used if the database :attr:`is_file`."""
        yield from ()


def in_url(query: str) -> str:
    """The advice to set a driver's timeout by ``query``, which is part of a URL."""
    return f"add {query} to the query of the database URL, or to connect_args"
