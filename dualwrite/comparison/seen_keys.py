"""Counts the rows and the records of each key in a temporary SQLite file, so that memory does not grow with them.

The file has no name, and is gone when the process ends. SQLite makes it in TMPDIR, or in SQLITE_TMPDIR.
"""

import sqlite3
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from dualwrite.comparison.job import Difference, DifferingKey
from dualwrite.errors import InputError

TABLE = -1
"""The place of rows. The place of a record is its partition."""

SETTINGS = ("journal_mode = OFF", "synchronous = OFF", "cache_size = -65536")  # KiB
_SCHEMA = """
CREATE TABLE seen (key BLOB, place INTEGER, n INTEGER, digest BLOB, PRIMARY KEY (key, place)) WITHOUT ROWID;
CREATE TABLE differing (key BLOB PRIMARY KEY, n_rows INTEGER, row_digest BLOB, n_records INTEGER, difference TEXT,
    is_open INTEGER DEFAULT 0, is_changed INTEGER DEFAULT 0) WITHOUT ROWID;
"""
_OR_COUNT = """ ON CONFLICT (key, place) DO UPDATE
    SET n = CASE excluded.n WHEN 0 THEN 0 ELSE n + 1 END, digest = excluded.digest"""
_ADD_ANY = "INSERT INTO seen VALUES (?, ?, ?, ?)" + _OR_COUNT  # noqa: S608
_ADD_DIFFERING = "INSERT INTO seen SELECT ?, ?, ?, ? WHERE ? IN (SELECT key FROM differing)" + _OR_COUNT  # noqa: S608
_BOTH_SIDES = """
SELECT seen.key AS key,
    SUM(CASE WHEN place < 0 THEN n ELSE 0 END) AS n_rows,
    MAX(CASE WHEN place < 0 AND n > 0 THEN digest END) AS row_digest,
    SUM(CASE WHEN place < 0 THEN 0 ELSE n END) AS n_records,
    MIN(CASE WHEN n > 0 THEN digest END) IS NOT MAX(CASE WHEN n > 0 THEN digest END) AS is_other
FROM seen {which} GROUP BY seen.key
"""
_DIFFERENCE = f"""
CASE WHEN now.n_rows > 0 AND now.n_records = 0 THEN '{Difference.ONLY_IN_TABLE.name}'
    WHEN now.n_rows = 0 AND now.n_records > 0 THEN '{Difference.ONLY_IN_TOPIC.name}'
    WHEN now.n_rows <> now.n_records AND NOT :last THEN '{Difference.NOT_EQUALLY_OFTEN.name}'
    WHEN now.n_rows = 1 AND is_other THEN '{Difference.OTHER_VALUE.name}' END
"""
_FOUND = f"""
SELECT key, n_rows, n_records, CASE WHEN is_open OR is_changed THEN '{Difference.UNSETTLED.name}' ELSE difference END
    AS difference FROM differing
"""  # noqa: S608


class Seen(NamedTuple):
    """One row or record.

    :param counts: 1; or 0 for a tombstone, which deletes the records of its key that came before it.
    :param digest: the digest of its value; None if values are not compared.
    """

    key: bytes
    counts: int = 1
    digest: bytes | None = None


class SeenKeys:
    """The keys of both sides, and those that differ.

    :param last: only the last record of a key counts.
    """

    def __init__(self, *, last: bool) -> None:
        self._last = last
        self._file = sqlite3.connect("", isolation_level=None)
        for setting in SETTINGS:
            self._file.execute(f"PRAGMA {setting}")
        self._file.executescript(_SCHEMA)
        self._file.execute("BEGIN")

    def close(self) -> None:
        """Delete the file."""
        self._file.close()

    def add(self, place: int, seen: Iterable[Seen], *, differing_only: bool = False) -> None:
        """Count rows or records of one place, in their order.

        :param differing_only: ignore keys that do not differ.
        """
        # Neighbours in the file are written together; the order within a key stays.
        in_order = sorted(seen, key=lambda one: one.key)
        statement: str = _ADD_ANY
        rows: list[tuple[object, ...]] = [(one.key, place, one.counts, one.digest) for one in in_order]
        if differing_only:
            statement, rows = _ADD_DIFFERING, [(*row, row[0]) for row in rows]
        with _clear_errors():
            self._file.executemany(statement, rows)

    def compare(self) -> int:
        """Find the keys that differ; return how many there are."""
        sides = _BOTH_SIDES.format(which="")
        with _clear_errors():
            self._file.execute(
                f"INSERT INTO differing (key, n_rows, row_digest, n_records, difference) "  # noqa: S608
                f"SELECT key, n_rows, row_digest, n_records, {_DIFFERENCE} AS found FROM ({sides}) AS now "
                "WHERE found IS NOT NULL",
                {"last": self._last},
            )
        return self._number()

    def begin_look(self) -> None:
        """Forget which of the keys that differ are open, and their rows, which are then read again."""
        with _clear_errors():
            self._file.execute("UPDATE differing SET is_open = 0")
        self.forget_rows()

    def forget_rows(self) -> None:
        """Forget the rows of the keys that differ."""
        with _clear_errors():
            self._file.execute(
                f"UPDATE seen SET n = 0 WHERE place = {TABLE} AND key IN (SELECT key FROM differing)"  # noqa: S608
            )

    def lacks_rows(self) -> bool:
        """True if a key that differs has fewer rows than in the look before."""
        with _clear_errors():
            (found,) = self._file.execute(
                "SELECT EXISTS (SELECT 1 FROM differing LEFT JOIN seen "  # noqa: S608
                f"ON seen.key = differing.key AND place = {TABLE} WHERE COALESCE(n, 0) < n_rows)"
            ).fetchone()
        return bool(found)

    def mark_open(self, keys: Iterable[bytes]) -> None:
        """Mark the keys of records that may be in open transactions."""
        with _clear_errors():
            self._file.executemany("UPDATE differing SET is_open = 1 WHERE key = ?", ((key,) for key in keys))

    def end_look(self) -> int:
        """Drop the keys that agree now; return how many still differ."""
        sides = _BOTH_SIDES.format(which="WHERE seen.key IN (SELECT key FROM differing)")
        with _clear_errors():
            self._file.execute(
                f"INSERT OR REPLACE INTO differing "  # noqa: S608
                f"SELECT key, now.n_rows, now.row_digest, now.n_records, {_DIFFERENCE}, is_open, "
                "now.n_rows <> before.n_rows OR now.row_digest IS NOT before.row_digest "
                f"FROM ({sides}) AS now JOIN differing AS before USING (key)",
                {"last": self._last},
            )
            self._file.execute("DELETE FROM differing WHERE difference IS NULL")
        return self._number()

    def differing(self, most: int) -> list[bytes] | None:
        """The keys that differ; None if they are more than ``most``."""
        with _clear_errors():
            keys = [key for (key,) in self._file.execute("SELECT key FROM differing LIMIT ?", (most + 1,))]
        return keys if len(keys) <= most else None

    def counts(self) -> Mapping[Difference, int]:
        """How many keys differ in each way."""
        with _clear_errors():
            found = dict(self._file.execute(f"SELECT difference, COUNT(*) FROM ({_FOUND}) GROUP BY 1"))  # noqa: S608
        return {difference: found.get(difference.name, 0) for difference in Difference}

    def examples(self, limit: int) -> Iterator[DifferingKey]:
        """The first ``limit`` keys of each difference, by their bytes."""
        limit = min(limit, sys.maxsize)
        query = f"SELECT key, n_rows, n_records FROM ({_FOUND}) WHERE difference = ? ORDER BY key LIMIT ?"  # noqa: S608
        for difference in Difference:
            with _clear_errors():
                found = self._file.execute(query, (difference.name, limit)).fetchall()
            for key, rows, records in found:
                yield DifferingKey(difference, key, rows, records)

    def _number(self) -> int:
        (found,) = self._file.execute("SELECT COUNT(*) FROM differing").fetchone()
        return int(found)


@contextmanager
def _clear_errors() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise InputError(
            f"the comparison's temporary file: {error}; name a directory with more space in SQLITE_TMPDIR"
        ) from error
