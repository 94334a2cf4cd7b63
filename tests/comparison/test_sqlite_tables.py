"""SQLite: values of any type in any column, and a table that is read in short pieces while others write."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine

from dualwrite.comparison.job import ComparisonJob, Difference, Verdict
from dualwrite.comparison.key_text import shown
from dualwrite.comparison.table import RowKeys, TableKeys
from tests.support.comparison.comparison_site import ComparisonSite, found, pairs

ONLY_IN_TABLE, ONLY_IN_TOPIC, NOT_EQUALLY_OFTEN, OTHER_VALUE, UNSETTLED = Difference


def store(site: ComparisonSite, *values: Any) -> None:
    """Insert one row, each value with the type that it has in Python."""
    assert site.engine.url.database is not None
    with sqlite3.connect(site.engine.url.database) as connection:
        connection.execute(f"INSERT INTO orders VALUES ({', '.join('?' * len(values))})", values)
    connection.close()


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("TEXT", b"47"),
        ("TEXT", "47"),
        ("BLOB", "47"),
        ("BLOB", 47),
        ("BLOB", b"47"),
        ("INTEGER", b"47"),
        ("INTEGER", 47),
        ("VARCHAR(9) COLLATE NOCASE", b"47"),
        ("CHAR(9)", b"47"),
    ],
)
def test_a_row_is_missed_in_whatever_type_its_key_is_stored(site: ComparisonSite, kind: str, value: Any) -> None:
    site.create(f"id {kind}")
    store(site, value)
    assert found(site.compare()) == {ONLY_IN_TABLE: ["47"]}
    site.produce(("47", "{}"))
    assert site.compare().verdict is Verdict.SAME


@pytest.mark.parametrize(("kind", "value"), [("BLOB", 4.5), ("INTEGER", 4.5), ("VARCHAR(9)", b"4.5")])
def test_a_row_that_a_look_up_does_not_find_is_still_there(site: ComparisonSite, kind: str, value: Any) -> None:
    site.create(f"id {kind}")
    store(site, value)
    store(site, 7)
    assert found(site.compare()) == {ONLY_IN_TABLE: ["4.5", "7"]}


@pytest.mark.parametrize(
    ("columns", "row", "record"),
    [
        ("id UUID", ("c0ffee00-3b1e-4f7e-8f55-0123456789ab",), '{"id": "c0ffee00-3b1e-4f7e-8f55-0123456789ab"}'),
        ("id STRING", ("tea",), '{"id": "tea"}'),
        ("id TIMESTAMPTZ", ("2026-01-01 00:00:00",), '{"id": "2026-01-01 00:00:00"}'),
        ("id INTEGER, at DATETIME", (1, 1700000000), '{"id": 1, "at": 1700000000}'),
        ("id INTEGER, at DATETIME", (1, "2026-01-31 10:00:00"), '{"id": 1, "at": "2026-01-31T10:00:00"}'),
        ("id INTEGER, at DATETIME", (1, "2026-01-31T10:00:00Z"), '{"id": 1, "at": "2026-01-31T10:00:00Z"}'),
        ("id INTEGER, at DATE", (1, "yesterday"), '{"id": 1, "at": "yesterday"}'),
        ("id INTEGER, at REAL", (1, "nope"), '{"id": 1, "at": "nope"}'),
        ("id INTEGER, doc JSON", (1, "nope"), '{"id": 1, "doc": "nope"}'),
        ("id INTEGER, doc JSON", (1, "[1, 2]"), '{"id": 1, "doc": [1, 2]}'),
    ],
)
def test_a_value_that_is_not_of_its_columns_type_is_compared_as_it_is_stored(
    site: ComparisonSite, columns: str, row: tuple[Any, ...], record: str
) -> None:
    site.create(columns)
    store(site, *row)
    site.produce((str(row[0]), record))
    assert found(site.compare(values=True)) == {}
    site.produce((str(row[0]), None), (str(row[0]), record.replace("}", ', "more": 1}')))
    assert found(site.compare(values=True)) == {OTHER_VALUE: [str(row[0])]}


def test_a_text_that_is_not_unicode_is_counted_and_spoils_no_other_row(site: ComparisonSite) -> None:
    site.create("id TEXT, item TEXT")
    site.sql("INSERT INTO orders VALUES (CAST(x'ff' AS TEXT), ''), ('a', ''), ('b', CAST(x'ff' AS TEXT))")
    site.produce(("a", '{"id": "a", "item": ""}'), ("b", '{"id": "b", "item": "\\udcff"}'))
    result = site.compare(values=True)
    assert (result.rows, result.rows_without_key) == (3, 1)
    assert found(result) == {OTHER_VALUE: ["b"]}


def test_spaces_at_the_end_of_a_char_count(site: ComparisonSite) -> None:
    site.create("id CHAR(5)")
    site.sql("INSERT INTO orders VALUES ('ab '), ('ab')")
    site.produce(("ab", "{}"), ("ab", "{}"))
    assert found(site.compare()) == {ONLY_IN_TABLE: ["ab "], NOT_EQUALLY_OFTEN: ["ab"]}


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dualwrite.comparison.table.BATCH", 3)


def keys_of(engine: Engine, table: str = "orders", **options: Any) -> list[str]:
    reader = TableKeys(engine, ComparisonJob(table, "topic", ["id"], **options))
    return sorted(shown(key) for batch in reader.read() for key, _ in batch if key is not None)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("number", [0, 1, 2, 3, 4, 6, 7, 20])
def test_every_row_is_in_one_piece(site: ComparisonSite, number: int) -> None:
    site.create("id TEXT, item TEXT")
    site.sql(*[f"INSERT INTO orders (rowid, id) VALUES ({7 * row - 20}, '{row:02}')" for row in range(number)])
    assert keys_of(site.engine) == [f"{row:02}" for row in range(number)]
    assert keys_of(site.engine, where="id >= '05' OR id = '01'") == [
        f"{row:02}" for row in range(number) if row == 1 or row >= 5
    ]


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize(
    ("columns", "view"),
    [
        ("id INTEGER PRIMARY KEY", False),
        ("id INTEGER, rowid TEXT, _rowid_ TEXT", False),
        ("id INTEGER, rowid TEXT, _ROWID_ TEXT, oid TEXT", False),
        ("id TEXT PRIMARY KEY) WITHOUT ROWID --", False),
        ("id INTEGER PRIMARY KEY", True),
    ],
)
def test_tables_with_any_row_number_and_with_none_are_read(site: ComparisonSite, columns: str, view: bool) -> None:
    site.create(columns)
    site.insert(range(8))
    site.sql("CREATE VIEW some AS SELECT id FROM orders")
    expected = [str(row) for row in range(8)]
    assert keys_of(site.engine, "some" if view else "orders") == expected
    assert keys_of(site.engine, "main.some" if view else "main.orders") == expected


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("journal", ["DELETE", "WAL"])
def test_others_write_while_the_table_is_read(tmp_path: Path, site: ComparisonSite, journal: str) -> None:
    site.sql(f"PRAGMA journal_mode = {journal}")
    site.create()
    site.insert(range(10))
    impatient = create_engine(f"sqlite:///{tmp_path / 'app.db'}", connect_args={"timeout": 0})
    batches = TableKeys(site.engine, ComparisonJob("orders", "topic", ["id"])).read()
    read: list[str] = []
    for number, batch in enumerate(batches):
        read += [shown(key) for key, _ in batch if key is not None]
        with impatient.begin() as connection:
            connection.exec_driver_sql(f"INSERT INTO orders (id) VALUES ({-number - 1})")
    assert sorted(read, key=int) == [str(row) for row in range(10)]
    impatient.dispose()


@pytest.mark.usefixtures("small_pieces")
def test_a_row_that_moves_between_two_pieces_is_no_difference(
    site: ComparisonSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.create("id INTEGER, item TEXT")
    site.insert(range(10))
    site.produce(*pairs(range(10)))
    read = TableKeys.read
    moves = iter(["UPDATE orders SET rowid = -1 WHERE id = 9", "UPDATE orders SET rowid = 99 WHERE id = 0"])
    pieces: list[int] = []

    def read_while_rows_move(table: TableKeys) -> Iterator[RowKeys]:
        for batch in read(table):
            yield batch
            pieces.append(len(batch))
            site.sql(*moves)

    monkeypatch.setattr(TableKeys, "read", read_while_rows_move)
    assert found(site.compare()) == {}
    assert pieces[:4] == [3, 3, 3, 1], "row 9 is not there, and row 0 is there twice"
