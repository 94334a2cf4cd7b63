"""Sums the hashes of a batch's rows, so that a batch that is run again can be compared with the one that was written.

The sum does not depend on the order of the rows, nor on their partitions: Spark may compute the same rows in another
order. Tasks sum while they write, and the driver adds their sums.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from dualwrite.spark.plan.columns import TableColumn, WritePlan
from dualwrite.spark.plan.converted_row import ConvertedRow

_BYTES = 16
_MODULUS = 2 ** (8 * _BYTES)
_VERSION = "1"
"""Another way to hash the same rows needs another version: digests of two versions are not compared."""


class RowSum(NamedTuple):
    """The number of rows, and the sum of their hashes modulo 2^128."""

    rows: int
    total: int


class RowSummer:
    """Sums the hashes of rows while they pass.

    :param plan: tells in which form the rows come.
    """

    def __init__(self, plan: WritePlan) -> None:
        self._is_packed = plan.is_packed
        self._rows = self._total = 0

    @property
    def sum(self) -> RowSum:
        """The sum of the rows that have passed."""
        return RowSum(self._rows, self._total % _MODULUS)

    def packed(self, rows: Iterable[Any]) -> Iterable[Any]:
        """``rows`` as they come from Spark. Packed rows are summed here, each as the one binary value that it is."""
        return self._summed(rows) if self._is_packed else rows

    def converted(self, rows: Iterator[ConvertedRow]) -> Iterator[ConvertedRow]:
        """``rows`` after their conversion. Rows that did not come packed are summed here."""
        return rows if self._is_packed else self._summed_by_value(rows)

    def _summed(self, rows: Iterable[bytes]) -> Iterator[bytes]:
        hash_of, number_of = hashlib.blake2b, int.from_bytes  # every row passes here
        for row in rows:
            self._total += number_of(hash_of(row, digest_size=_BYTES).digest(), "big")
            self._rows += 1
            yield row

    def _summed_by_value(self, rows: Iterable[ConvertedRow]) -> Iterator[ConvertedRow]:
        for row in rows:
            content = repr(row[:-1]).encode()  # without the weight
            self._total += int.from_bytes(hashlib.blake2b(content, digest_size=_BYTES).digest(), "big")
            self._rows += 1
            yield row


def digest_of(sums: Iterable[RowSum], plan: WritePlan, columns: Sequence[TableColumn]) -> str:
    """The digest of all rows of a batch: the version, the form of the rows with their columns, and the sum.

    :param sums: of each task.
    :param plan: of the tasks.
    :param columns: the table's columns.
    """
    form = "packed" if plan.is_packed else "values" if plan.line_at is None else "lines"
    names = hashlib.sha256(json.dumps([column.name for column in columns]).encode()).hexdigest()[:8]
    total = sum(part.total for part in sums) % _MODULUS
    return f"{_VERSION}:{form}-{names}:{total:0{2 * _BYTES}x}"


def digests_differ(before: str, now: str) -> bool:
    """True if the rows of two digests differ for sure. Digests of two versions cannot be compared, and of the same rows
    in two forms only their columns: ``write_batch`` and the data source may get a row in two forms."""
    if before.partition(":")[0] != now.partition(":")[0]:
        return False  # another version may have another form
    (_, content, total), (_, content_now, total_now) = before.split(":"), now.split(":")
    (form, names), (form_now, names_now) = content.split("-"), content_now.split("-")
    return names != names_now or (form == form_now and total != total_now)
