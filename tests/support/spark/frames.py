"""DataFrames for tests in Spark, streams of files, and what must be on both sides afterwards."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support.spark.batches import open_slots, staged_rows
from tests.support.spark.writing import Place, values_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

THINGS = "id BIGINT, note STRING"


def things(spark: "SparkSession", number: int = 100, partitions: int = 4, begin: int = 0) -> "DataFrame":
    return spark.range(begin, begin + number, 1, partitions).selectExpr("id", "concat('note ', id) AS note")


def save(df: "DataFrame", place: Place, mode: str = "append", **options: str) -> None:
    texts = {name: str(value) for name, value in {**place.keywords(), **options}.items()}
    df.write.format("dualwrite").options(**texts).mode(mode).save()


def judge(place: Place, rows: list[tuple[int, str]]) -> None:
    """Both sides have ``rows``, and nothing is left anywhere else."""
    assert place.stored() == rows
    assert place.produced() == values_of(rows)
    assert staged_rows(place.engine) == 0
    signed = [name for name in open_slots(place.engine) if "run-" in name]
    assert signed == []


def put(source: Path, rows: list[tuple[int, str]]) -> None:
    """A file for a stream, which appears whole."""
    lines = "\n".join(json.dumps({"id": key, "note": note}) for key, note in rows)
    hidden = source / f".{rows[0][0]}.tmp"
    hidden.write_text(lines)
    hidden.rename(source / f"{rows[0][0]}.json")


def forget_last_commit(checkpoint: Path) -> None:
    """As if the driver had died between the sink's commit and the query's."""
    commits = checkpoint / "commits"
    last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
    (commits / str(last)).unlink()
    (commits / f".{last}.crc").unlink(missing_ok=True)
