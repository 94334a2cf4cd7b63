"""The identity of a load: its input, its table and its topic.

A file is known by its full path, with symbolic links resolved, because parts of one data set often share a file name.
The cost of this rule: a file that was moved loads again from its beginning, unless the load has a name. An input that
is not a file is known by the load's name alone. Encoding, delimiter and batch size are not part of the identity.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class LoadKey:
    """The identity of a load."""

    source: str
    table: str
    topic: str

    @classmethod
    def of(cls, path: Path, table: str, topic: str) -> "LoadKey":
        """The load of the file at ``path`` into ``table`` and ``topic``."""
        return cls(str(path.resolve()), table, topic)

    @classmethod
    def named(cls, name: str, table: str, topic: str) -> "LoadKey":
        """The load that the user calls ``name`` into ``table`` and ``topic``. No path is ever the same."""
        return cls(f"name:{name}", table, topic)

    @property
    def load_id(self) -> str:
        """The key of the load's row: 64 hexadecimal digits."""
        return hashlib.sha256("\0".join((self.source, self.table, self.topic)).encode()).hexdigest()

    @property
    def bad_rows_id(self) -> str:
        """The key of the row that counts the load's bad rows: 64 hexadecimal digits."""
        return hashlib.sha256(f"{self.load_id}\0bad rows".encode()).hexdigest()
