"""The loader's job, its progress, and the interface of DualWrite that it needs."""

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dualwrite.errors import ConfigurationError
from dualwrite.ids import is_legal_topic
from dualwrite.loader.format import InputFormat
from dualwrite.loader.identity import LoadKey
from dualwrite.loader.streams import STANDARD_INPUT

if TYPE_CHECKING:
    from sqlalchemy import Connection, CursorResult, Executable

MOST_IN_BATCH = 2**31 - 1
"""The most rows in a unit of work, which are in memory at the same time."""


class UnitOfWork(Protocol):
    """The part of a unit of work that the loader uses."""

    @property
    def connection(self) -> "Connection":
        """The connection of the unit of work's database transaction."""

    def execute(self, statement: "Executable", parameters: Any = None) -> "CursorResult[Any]":
        """Run ``statement`` in the unit of work's database transaction."""

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
    """An input, and the table and the topic to load it into.

    :param path: the file: .csv, .tsv, .jsonl, .ndjson or .json, alone, gzipped or as the one member of a zip archive;
        None for standard input, which needs ``name`` and ``form.kind``.
    :param table: the table's name, or ``schema.table``. It must exist.
    :param topic: the topic of the records.
    :param key: the column whose text is the records' key; None for records without a key.
    :param batch_size: rows in a unit of work.
    :param null: a text that stands for NULL, besides the empty field of CSV.
    :param name: a name that stands for the path in the load's identity.
    :param form: the format of the input.
    :param bad_rows: the file for rows that do not fit; None to stop at the first one.
    """

    path: Path | None
    table: str
    topic: str
    key: str | None = None
    batch_size: int = 500
    null: str | None = None
    name: str | None = None
    form: InputFormat = field(default_factory=InputFormat)
    bad_rows: Path | None = None

    @property
    def load_key(self) -> LoadKey:
        """The identity under which this load's position is stored.

        :raises ConfigurationError: if there is neither a path nor a name.
        """
        if self.name is not None:
            return LoadKey.named(self.name, self.table, self.topic)
        if self.path is None:
            raise ConfigurationError(
                "standard input has no path that could identify the load: add --name NAME, the same in every run"
            )
        return LoadKey.of(self.path, self.table, self.topic)

    @property
    def source_name(self) -> str:
        """The input, for messages."""
        return STANDARD_INPUT if self.path is None else str(self.path)

    def check(self) -> None:
        """Check what can be checked without the input.

        :raises ConfigurationError: if the batch size or the topic is invalid, or standard input has no name or kind.
        """
        if self.batch_size < 1:
            raise ConfigurationError(f"batch size {self.batch_size}: use 1 or more")
        if self.batch_size > MOST_IN_BATCH:
            raise ConfigurationError(f"batch size {self.batch_size}: use {MOST_IN_BATCH} at most")
        if not is_legal_topic(self.topic):
            raise ConfigurationError(
                f"topic {self.topic!r}: use 1 to 249 letters, digits, dots, underscores and hyphens"
            )
        if self.path is None and self.form.kind is None:
            raise ConfigurationError("standard input has no name that tells its format: add --format csv, tsv or jsonl")
        if self.name == "":
            raise ConfigurationError("--name is empty: give the load a name")
        _ = self.load_key


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a load.

    :param rows: all loaded rows.
    :param earlier_rows: the rows of them that an earlier run loaded.
    :param fraction: the part of the text that was read, 0 to 1.
    :param bad_rows: the rows that are in the file for bad rows instead.
    :param earlier_bad_rows: the rows of them that an earlier run put there.
    """

    rows: int
    earlier_rows: int
    fraction: float
    bad_rows: int = 0
    earlier_bad_rows: int = 0
