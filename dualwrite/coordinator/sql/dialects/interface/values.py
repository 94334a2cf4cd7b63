"""The values that a database stores unchanged."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Column, ColumnElement, Connection, Table
from sqlalchemy import types as sqltypes
from sqlalchemy.types import TypeEngine


class DatabaseValues:
    """The part of Database that concerns values of the user's tables. Spark and the loader write a row and a message
    that agree, so they must know the value that the database will store."""

    keeps_time_zones = False
    """True if a column WITH TIME ZONE takes an instant with its zone; else it gets the instant in UTC."""

    keeps_infinities = False
    """True if floating-point columns hold infinities and NaN."""

    keeps_negative_zeros = False
    """True if floating-point columns hold -0.0 rather than 0.0."""

    keeps_decimals = True
    """False if NUMERIC is floating point except for whole numbers."""

    has_dynamic_types = False
    """True if a value need not be of its column's type."""

    fills_integer_keys = False
    """True if every primary key of one integer column gets its value from the database, if none is given."""

    def is_instant(self, kind: TypeEngine[Any]) -> bool:
        """True if a DateTime column of type ``kind`` holds an instant rather than a local time."""
        return bool(getattr(kind, "timezone", False))

    def is_float(self, kind: TypeEngine[Any]) -> bool:
        """True if a column of ``kind`` holds floating-point numbers."""
        return isinstance(kind, sqltypes.Float) or (isinstance(kind, sqltypes.Numeric) and not self.keeps_decimals)

    def is_single(self, kind: TypeEngine[Any]) -> bool:
        """True if a column of ``kind`` holds floating-point numbers of single precision."""
        return isinstance(kind, sqltypes.REAL)

    def float_scale(self, kind: TypeEngine[Any]) -> int | None:
        """The number of digits after the point to which a floating-point column of ``kind`` rounds; None if it does
        not. Override it if there are such types."""
        return None

    def integers(self, kind: TypeEngine[Any]) -> range:
        """The integers that a column of ``kind`` holds. Override it if there are types of other sizes."""
        bits = 64
        if not self.has_dynamic_types and not isinstance(kind, sqltypes.BigInteger):
            bits = 16 if isinstance(kind, sqltypes.SmallInteger) else 32
        return range(-(1 << bits - 1), 1 << bits - 1)

    def set_names(self, kind: TypeEngine[Any]) -> Sequence[str] | None:
        """The names of a column of ``kind`` that holds some of them, with commas between them; None for any other."""
        return None

    def exact_column(self, column: "Column[Any]") -> ColumnElement[Any]:
        """``column`` as an expression that shows each of its values exactly. Override it where the server, the driver
        or SQLAlchemy shows some values as others, or cannot show them."""
        return column

    @contextmanager
    def showing_exactly(self, connection: Connection) -> Iterator[None]:
        """Let ``connection`` return values that its driver otherwise fails at. Override it if there are such values."""
        yield

    def row_number(self, connection: Connection, table: Table) -> ColumnElement[Any] | None:
        """A number of each row of ``table`` with an index, by which to divide a long read into short statements; None
        if there is none, or no need. Override it where a reader keeps writers waiting."""
        return None

    def second_digits(self, kind: TypeEngine[Any]) -> int:
        """The number of fractional digits of a second that a column of ``kind`` stores."""
        precision = getattr(kind, "precision", None)
        return precision if isinstance(precision, int) else 6

    def require_strict(self, connection: Connection) -> None:
        """Require that the database refuses a value that does not fit its column, and does not change it. Override it
        if that depends on a setting.

        :raises ConfigurationError: if the database would change the value.
        """
