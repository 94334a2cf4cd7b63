"""The table that the loader's tests fill on database servers: a column of each type, and one row in all its forms."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine


@dataclass(frozen=True)
class Things:
    """A server's ``things``.

    :param row: as it is in the input.
    :param stored: what the server shows of it afterwards.
    :param message: the record's value.
    :param refused: changes of a row that only the server can refuse, each with words of its refusal.
    :param edges: changes of a row to the last values that columns hold.
    :param beyond: changes of a row to values that columns do not hold, each with words of the loader's refusal.
    :param as_text: SQL for a column as the server writes it.
    """

    columns: Mapping[str, str]
    row: dict[str, str]
    stored: dict[str, Any]
    message: dict[str, Any]
    refused: tuple[tuple[Mapping[str, str], str], ...]
    as_text: str
    options: str = ""
    edges: tuple[Mapping[str, str], ...] = ()
    beyond: tuple[tuple[Mapping[str, str], str], ...] = ()

    def create(self, engine: Engine) -> None:
        """Make the table, which is empty."""
        columns = ", ".join(f"{name} {kind}" for name, kind in self.columns.items())
        with engine.begin() as connection:
            connection.exec_driver_sql(f"CREATE TABLE things ({columns}) {self.options}")

    def all_stored(self, engine: Engine) -> list[dict[str, Any]]:
        """The rows of the table, every value as the server writes it."""
        texts = ", ".join(f"{self.as_text.format(name)} AS {name}" for name in self.columns)
        with engine.connect() as connection:
            found = connection.exec_driver_sql(f"SELECT {texts} FROM things ORDER BY things.id")
            return [dict(row) for row in found.mappings()]

    def rows(self, count: int) -> list[dict[str, str]]:
        """``count`` rows of the input, numbered from 0."""
        return [{**self.row, "id": str(number)} for number in range(count)]

    def as_csv(self, *rows: Mapping[str, str]) -> str:
        """``rows`` with a header."""
        quoted = [",".join('"' + value.replace('"', '""') + '"' for value in row.values()) for row in rows]
        return "\n".join([",".join(self.row), *quoted]) + "\n"


_EVERYWHERE = {
    "id": "1",
    "small": "-5",
    "exact": "0.10000000000000000001",
    "day": "2013-01-31",
    "code": "abc",
}
_EDGES: tuple[Mapping[str, str], ...] = (
    {"small": "32767"},
    {"small": "-32768"},
    {"code": "ä€🍞  "},
    {"exact": "-9999999999.99999999999999999999"},
)
_BEYOND: tuple[tuple[Mapping[str, str], str], ...] = (
    ({"id": str(2**63)}, "expected an integer from -9223372036854775808 to 9223372036854775807"),
    ({"small": "32768"}, "expected an integer from -32768 to 32767, not 32768"),
    ({"code": "abcd"}, "has 4 characters, and the column holds 3"),
    ({"exact": "10000000000"}, "10000000000 has more than 10 digits before the point"),
)
_POSTGRESQL = {
    **_EVERYWHERE,
    "real": "0.1",
    "yes": "t",
    "clock": "23:59:58.5",
    "moment": "2013-01-01T10:00:00+05:30",
    "local": "2013-01-01T10:00:00+05:30",
    "uid": "5f0c9b0a-3b1e-4f7e-8f55-0123456789ab",
    "doc": '{"a": [1, 2.5, null]}',
}
POSTGRESQL = Things(
    columns={
        "id": "BIGINT PRIMARY KEY",
        "small": "SMALLINT CHECK (small <> -7)",
        "exact": "NUMERIC(30, 20)",
        "day": "DATE",
        "code": "VARCHAR(3)",
        "real": "DOUBLE PRECISION",
        "yes": "BOOLEAN",
        "clock": "TIME",
        "moment": "TIMESTAMPTZ",
        "local": "TIMESTAMP",
        "uid": "UUID",
        "doc": "JSONB",
    },
    row=_POSTGRESQL,
    stored={**_POSTGRESQL, "yes": "true", "moment": "2013-01-01 04:30:00+00", "local": "2013-01-01 04:30:00"},
    message={
        **_POSTGRESQL,
        "id": 1,
        "small": -5,
        "real": 0.1,
        "yes": True,
        "clock": "23:59:58.500000",
        "moment": "2013-01-01T04:30:00+00:00",
        "local": "2013-01-01T04:30:00",
        "doc": {"a": [1, 2.5, None]},
    },
    refused=(
        ({"small": "-7"}, "violates check constraint"),
        ({"id": "1"}, "duplicate key value violates unique constraint"),
    ),
    edges=_EDGES,
    beyond=_BEYOND,
    as_text="{}::text",
)
_MARIADB = {
    **_EVERYWHERE,
    "big": "9223372036854775807",
    "real_": "0.1",
    "money": "9.995",
    "yes": "true",
    "clock": "23:59:58.9",
    "moment": "2013-01-01T10:00:00.75+05:30",
    "fine": "2013-01-01T10:00:00.75+05:30",
    "kind": "b",
    "note": "smørrebrød 🍞",
}
MARIADB = Things(
    columns={
        "id": "BIGINT PRIMARY KEY",
        "small": "SMALLINT CHECK (small <> -7)",
        "exact": "DECIMAL(30, 20)",
        "day": "DATE",
        "code": "VARCHAR(3)",
        "big": "BIGINT UNSIGNED",
        "real_": "DOUBLE",
        "money": "DECIMAL(10, 2)",
        "yes": "BOOLEAN",
        "clock": "TIME",
        "moment": "DATETIME",
        "fine": "DATETIME(6)",
        "kind": "ENUM('a', 'b')",
        "note": "TEXT",
    },
    row=_MARIADB,
    stored={
        **_MARIADB,
        "money": "10.00",
        "yes": "1",
        "clock": "23:59:58",
        "moment": "2013-01-01 04:30:00",
        "fine": "2013-01-01 04:30:00.750000",
    },
    message={
        **_MARIADB,
        "id": 1,
        "small": -5,
        "big": 9223372036854775807,
        "real_": 0.1,
        "money": "10.00",
        "yes": 1,
        "clock": "23:59:58",
        "moment": "2013-01-01T04:30:00",
        "fine": "2013-01-01T04:30:00.750000",
    },
    refused=(
        ({"small": "-7"}, "CONSTRAINT `things.small` failed"),
        ({"id": "1"}, "Duplicate entry '1' for key 'PRIMARY'"),
    ),
    edges=(*_EDGES, {"big": "18446744073709551615"}, {"big": "0"}, {"money": "-99999999.99"}),
    beyond=(
        *_BEYOND,
        ({"big": "18446744073709551616"}, "expected an integer from 0 to 18446744073709551615"),
        ({"big": "-1"}, "expected an integer from 0 to 18446744073709551615"),
        ({"money": "99999999.995"}, "99999999.995 has more than 8 digits before the point"),
    ),
    as_text="CAST({} AS CHAR)",
    options="CHARACTER SET utf8mb4",
)
