"""A row as it is written: for the database and for Kafka."""

from typing import Any, NamedTuple

from dualwrite.errors import InputError

Headers = list[tuple[str, bytes | None]]


class ConvertedRow(NamedTuple):
    """One row for the database and for Kafka: the values of the table's columns, and the record.

    :param values: the values; or a line of PostgreSQL's COPY, without its end, if Spark has written it (copy_lines.py).
    :param weight: bytes of the texts and binaries, and of the record's key, value and headers.
    """

    values: tuple[Any, ...] | bytes
    topic: str
    key: bytes | None
    value: bytes | None
    partition: int
    headers: Headers | None
    weight: int


def require_no_nul(line: bytes, number: int) -> None:
    """Pass if PostgreSQL can take ``line``.

    :param number: the row's number, for the message.
    :raises InputError: if it cannot.
    """
    if b"\0" in line:
        raise InputError(f"row {number}: PostgreSQL's texts have no NUL characters")
