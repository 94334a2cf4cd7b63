"""What a load is asked to do, what it reports, and what it needs of DualWrite."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from dualwrite.loader.position import Executes, LoadKey


class UnitOfWork(Executes, Protocol):
    """What the loader asks of a unit of work."""

    def produce(self, topic: str, value: bytes, key: bytes | None = None) -> None:
        """Add a record."""


class LoadUnits(Protocol):
    """What the loader asks of DualWrite."""

    def recover(self) -> Any:
        """Decide what a predecessor left."""

    def transaction(self) -> AbstractContextManager[UnitOfWork]:
        """A unit of work."""


@dataclass(frozen=True, slots=True)
class LoadJob:
    """What to load.

    :param path: the file: .csv, .jsonl, .ndjson or .json, alone, gzipped or as the one member of a zip archive.
    :param table: the table's name, ``schema.table`` if need be. It must exist.
    :param topic: the topic of the records.
    :param key: the column whose text is the records' key; None for records without a key.
    :param batch_size: rows in a unit of work.
    :param null: a text that means NULL, besides the empty field of CSV.
    """

    path: Path
    table: str
    topic: str
    key: str | None = None
    batch_size: int = 500
    null: str | None = None

    @property
    def load_key(self) -> LoadKey:
        """The identity of this load, as its position is stored under."""
        return LoadKey.of(self.path, self.table, self.topic)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a load is: rows of the input done in all, those found done by an earlier run, and the part of the text
    that was read, 0 to 1."""

    rows: int
    earlier_rows: int
    fraction: float
