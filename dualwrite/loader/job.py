"""The loader's job, its progress, and the interface of DualWrite that it needs."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from dualwrite.loader.position import Executes, LoadKey


class UnitOfWork(Executes, Protocol):
    """The part of a unit of work that the loader uses."""

    def produce(self, topic: str, value: bytes, key: bytes | None = None) -> None:
        """Add a record."""


class LoadUnits(Protocol):
    """The part of DualWrite that the loader uses."""

    def recover(self) -> Any:
        """End the open transactions of a dead predecessor."""

    def transaction(self) -> AbstractContextManager[UnitOfWork]:
        """A unit of work."""


@dataclass(frozen=True, slots=True)
class LoadJob:
    """A file, and the table and the topic to load it into.

    :param path: the file: .csv, .jsonl, .ndjson or .json, alone, gzipped or as the one member of a zip archive.
    :param table: the table's name, or ``schema.table``. It must exist.
    :param topic: the topic of the records.
    :param key: the column whose text is the records' key; None for records without a key.
    :param batch_size: rows in a unit of work.
    :param null: a text that stands for NULL, besides the empty field of CSV.
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
    """The progress of a load: all loaded rows, the rows of them that an earlier run loaded, and the part of the text
    that was read, 0 to 1."""

    rows: int
    earlier_rows: int
    fraction: float
