"""The values that a database stores unchanged."""

from typing import Any

from sqlalchemy import Connection
from sqlalchemy.types import TypeEngine


class DatabaseValues:
    """The part of Database that concerns values of the user's tables. Spark and the loader write a row and a message
    that agree, so they must know the value that the database will store."""

    keeps_time_zones = False
    """True if a column WITH TIME ZONE takes an instant with its zone; else it gets the instant in UTC."""

    keeps_infinities = False
    """True if floating-point columns hold infinities and NaN."""

    keeps_decimals = True
    """False if NUMERIC is floating point except for whole numbers."""

    fills_integer_keys = False
    """True if every primary key of one integer column gets its value from the database, if none is given."""

    def is_instant(self, kind: TypeEngine[Any]) -> bool:
        """True if a DateTime column of type ``kind`` holds an instant rather than a local time."""
        return bool(getattr(kind, "timezone", False))

    def second_digits(self, kind: TypeEngine[Any]) -> int:
        """The number of fractional digits of a second that a column of ``kind`` stores."""
        precision = getattr(kind, "precision", None)
        return precision if isinstance(precision, int) else 6

    def require_strict(self, connection: Connection) -> None:
        """Require that the database refuses a value that does not fit its column, and does not change it. Override it
        if that depends on a setting.

        :raises ConfigurationError: if the database would change the value.
        """
