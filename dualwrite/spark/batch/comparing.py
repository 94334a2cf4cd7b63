"""Compares the rows of a batch that is run again with the rows that were committed under its number."""

from typing import NamedTuple

from dualwrite.errors import BatchChangedError
from dualwrite.spark.batch.known_batches import BatchContent
from dualwrite.spark.batch.row_sums import digests_differ
from dualwrite.spark.known.targets import ADVICE


class BatchResult(NamedTuple):
    """The result of a whole batch.

    :param is_written: True if this call has written the batch; False if it was committed before, and this call has
        written nothing.
    :param rows: the number of the batch's rows.
    :param records: the number of its records in Kafka: one for each row.
    """

    is_written: bool
    rows: int
    records: int


def require_same_rows(batch: str, known: BatchContent, rows: BatchContent) -> None:
    """Pass if ``rows`` are the rows that ``batch`` was written with, in any order and in any partitions.

    :param batch: the batch's name, for messages.
    :raises BatchChangedError: if they differ.
    """
    if known.rows != rows.rows:
        raise BatchChangedError(f"{batch} was written with {known.rows} rows, and has {rows.rows} now: {ADVICE}")
    before, now = known.digest, rows.digest
    if before is not None and now is not None and digests_differ(before, now):
        raise BatchChangedError(f"{batch} was written with {known.rows} rows, and some of them differ now: {ADVICE}")
