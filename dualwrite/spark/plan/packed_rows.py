"""Reads rows that Spark has packed: each is one binary value with the line of COPY and the record's key and value.

The parts are the line, an end, the number of the key's bytes, an end, the key, and the value, which is JSON. A line has
no such end inside, because COPY escapes it. Written for speed: every row passes here.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn, cast

from dualwrite.errors import InputError
from dualwrite.spark.plan.columns import REFUSED
from dualwrite.spark.plan.converted_row import ConvertedRow, require_no_nul

PART_END = REFUSED.encode()
"""Where Spark refuses a row, its reason follows this, in the place of the line or of the value."""
NULL_KEY = b"-"
"""Stands for the number of the key's bytes, if the key is NULL."""


def unpacked(rows: Iterable[bytes], topic: str) -> Iterator[ConvertedRow]:
    """The rows, one by one.

    :raises InputError: at a row that Spark has refused, or that PostgreSQL would refuse.
    """
    new_row: Callable[[type[ConvertedRow], tuple[Any, ...]], ConvertedRow] = cast(Any, tuple.__new__)
    for number, data in enumerate(rows, 1):
        line_end = data.index(PART_END)
        if not line_end:
            _refuse(data, number)
        key_at = data.index(PART_END, line_end + 1) + 1
        size = data[line_end + 1 : key_at - 1]
        if size == NULL_KEY:
            key, value = None, data[key_at:]
        else:
            value_at = key_at + int(size)
            key, value = data[key_at:value_at], data[value_at:]
        if value.startswith(PART_END):
            _refuse(value, number)
        line = data[:line_end]
        if b"\0" in line:
            require_no_nul(line, number)
        yield new_row(ConvertedRow, (line, topic, key, value, -1, None, len(data)))


def _refuse(reason: bytes, number: int) -> NoReturn:
    """Refuse a row with Spark's reason. More parts may follow it."""
    raise InputError(f"row {number}, {reason.decode().removeprefix(REFUSED).partition(REFUSED)[0]}")
