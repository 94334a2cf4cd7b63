"""The loader's job, its progress, and the interface of DualWrite that it needs."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from dualwrite.loader.position import Executes, LoadKey


class UnitOfWork(Executes, Protocol):
    """What the loader needs of a unit of work."""

    def produce(self, topic: str, value: bytes, key: bytes | None = None) -> None:
        """Add a record."""


class LoadUnits(Protocol):
    """What the loader needs of DualWrite."""

    def recover(self) -> Any:
        """Decide the transactions that a predecessor left."""

    def transaction(self) -> AbstractContextManager[UnitOfWork]:
        """A unit of work."""


@dataclass(frozen=True, slots=True)
class LoadJob:
    """What to load.

    :param path: the file: .csv, .jsonl, .ndjson or .json, alone, gzipped or as the one member of a zip archive.
    :param table: the table's name, or ``schema.table``. It must exist.
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
        """The identity under which this load's position is stored."""
        return LoadKey.of(self.path, self.table, self.topic)


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a load: the loaded rows of the input, those of them that an earlier run loaded, and the part of
    the text that was read, 0 to 1."""

    rows: int
    earlier_rows: int
    fraction: float
