"""The example, whose driver dies of SIGKILL once: when a batch is written, and Spark has not noted that yet.

So Spark runs that batch again. With IN_TWO_ACTS in the environment there is no dual write: each batch is upserted into
the table, and sent to the topic by Spark's own sink. That is what the comparison must notice.
"""

import os
import signal
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from sqlalchemy import create_engine
from sqlalchemy.dialects.postgresql import insert

from examples import spark_flights

DEADLY = 1
"""The batch."""

MARK = Path("died")
"""A file in the directory where it runs: it has died."""

write_batch = spark_flights.write_batch


def write_in_two_acts(rows: DataFrame, batch_id: int, *, url: str, upsert_keys: list[str], **options: Any) -> None:
    """As users write it who have no dual write; ``batch_id`` is of no use to them."""
    rows.persist()
    columns = list(spark_flights.delays.columns.keys())
    statement = insert(spark_flights.delays)
    changed = {name: statement.excluded[name] for name in columns if name not in upsert_keys}
    engine = create_engine(url)
    with engine.begin() as connection:
        for row in rows.collect():
            values = {name: row[name] for name in columns}
            connection.execute(statement.on_conflict_do_update(index_elements=upsert_keys, set_=changed), values)
    engine.dispose()
    kafka = {f"kafka.{name}": value for name, value in options["kafka"].items()}
    records = rows.selectExpr("key", f"to_json(struct({', '.join(columns)})) AS value")
    records.write.format("kafka").options(**kafka).option("topic", options["topic"]).save()


def write_and_die(rows: DataFrame, batch_id: int, **options: Any) -> None:
    """Write; and once, die."""
    write = write_in_two_acts if "IN_TWO_ACTS" in os.environ else write_batch
    write(rows, batch_id, **options)
    if batch_id == DEADLY and not MARK.exists():
        MARK.touch()
        os.kill(os.getppid(), signal.SIGKILL)  # the JVM
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    spark_flights.write_batch = write_and_die
    spark_flights.main()
