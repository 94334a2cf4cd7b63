"""The open runs of Spark jobs, on each kind of database."""

from datetime import timedelta

import pytest
from sqlalchemy import create_engine, insert

from dualwrite.coordinator.sql.tables import spark_run
from dualwrite.errors import DatabaseNotReadyError
from dualwrite.operations.spark_runs import open_runs
from tests.support.operations.histories import NOW
from tests.support.operations.places import OperationsSite

pytestmark = pytest.mark.slow_cases("mariadb", "postgresql")


def run(job: str, state: str, hours: int, schema: str | None = None) -> dict[str, object]:
    moments = {"expires_at": NOW + timedelta(hours=hours), "updated_at": NOW}
    return {"job": job, "run_id": 2**61, "state": state, "staging_schema": schema, "staging_table": "stage", **moments}


def test_only_open_runs_are_listed_by_job_with_the_time_that_is_left(any_place: OperationsSite) -> None:
    assert open_runs(any_place.engine) == []
    runs = [
        run("nightly", "open", 2, "s"),
        run("late", "open", -2),
        run("done", "committed", 2),
        run("gone", "aborted", 2),
    ]
    with any_place.engine.begin() as connection:
        connection.execute(insert(spark_run), runs)
    late, nightly = open_runs(any_place.engine)
    assert (late.job, late.run_id, late.staging, late.is_overdue) == ("late", 2**61, "stage", True)
    assert (nightly.job, nightly.staging, nightly.is_overdue) == ("nightly", "s.stage", False)
    assert 3600 < nightly.remaining <= 7200


def test_without_the_tables_the_upgrade_is_named() -> None:
    engine = create_engine("sqlite://")
    with pytest.raises(DatabaseNotReadyError, match="dualwrite db upgrade"):
        open_runs(engine)
    engine.dispose()
