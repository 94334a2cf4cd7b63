"""An executor's memory is bounded for every partition size: a million rows in one partition."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

from dualwrite.spark import partition_writer
from tests.support.spark.writing import Place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.postgresql, pytest.mark.slow]

ROWS, WARM = 1_000_000, 100_000
MOST_GROWTH = 48 * 2**20
"""Bytes. A row has 150 or so, so a million of them would be 150 MB."""


def resident() -> int:
    """The bytes of memory that this process has had at most."""
    (kilobytes,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(kilobytes) * 1024


class Measured:
    """A writer that notes, in a file, how much memory its process had after WARM rows and at the end."""

    def __init__(self, writer: Any, notes: Path) -> None:
        self._writer, self._notes = writer, notes

    def __call__(self, rows: Iterable[Any]) -> None:
        Path("/proc/self/clear_refs").write_text("5")  # the most is counted from now on
        self._writer(self._watched(rows))
        self._note()

    def _watched(self, rows: Iterable[Any]) -> Iterator[Any]:
        for number, row in enumerate(rows):
            if number == WARM:
                self._note()
            yield row

    def _note(self) -> None:
        with self._notes.open("a") as notes:
            notes.write(f"{resident()}\n")


def test_a_million_rows_in_one_partition(spark: "SparkSession", postgresql_place: Place, tmp_path: Path) -> None:
    place = postgresql_place
    df = spark.range(0, ROWS, 1, 1).selectExpr("id", "concat(repeat('x', 80), id) AS note")
    writer = partition_writer(df, **place.keywords())
    df.foreachPartition(Measured(writer, tmp_path / "notes"))
    warm, after = (int(line) for line in (tmp_path / "notes").read_text().split())
    with place.engine.connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM things")) == ROWS
        assert connection.scalar(text("SELECT row_count FROM dualwrite_spark_progress WHERE partition = 0")) == ROWS
    print(f"{warm / 2**20:.0f} MiB after {WARM:,} rows, {after / 2**20:.0f} after {ROWS:,}")
    assert after - warm < MOST_GROWTH
