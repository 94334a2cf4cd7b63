"""The open runs of Spark jobs: whole batches that are being written. Each run prepares transactions in Kafka, which
only its row decides (spark/batch/runs.py). Reads only.
"""

from dataclasses import dataclass

from sqlalchemy import Engine, select

from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.coordinator.sql.engine.error_meanings import clear_errors
from dualwrite.coordinator.sql.own_tables import ours
from dualwrite.coordinator.sql.tables import OPEN_RUN, spark_run


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A run that has not been decided.

    :param remaining: seconds for which its prepared transactions are left to it; below 0, any process may abort them.
    :param staging: the table with the rows that its tasks have written so far.
    """

    job: str
    run_id: int
    remaining: float
    staging: str

    @property
    def is_overdue(self) -> bool:
        """True if its driver has not decided in time: most likely it is gone."""
        return self.remaining < 0


def open_runs(engine: Engine) -> list[OpenRun]:
    """The open runs, by job. Locks nothing.

    :raises DatabaseNotReadyError: before ``dualwrite db upgrade``.
    """
    remaining = database_of(engine.dialect).seconds_until(spark_run.c.expires_at).label("remaining")
    columns = (spark_run.c.job, spark_run.c.run_id, spark_run.c.staging_schema, spark_run.c.staging_table, remaining)
    query = select(*columns).where(spark_run.c.state == OPEN_RUN).order_by(spark_run.c.job)
    with engine.connect() as connection, clear_errors(engine):
        rows = connection.execute(query, execution_options=ours(connection)).all()
    return [
        OpenRun(
            row.job,
            row.run_id,
            float(row.remaining),
            row.staging_table if row.staging_schema is None else f"{row.staging_schema}.{row.staging_table}",
        )
        for row in rows
    ]
