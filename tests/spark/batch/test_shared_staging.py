"""Staging tables that two drivers make at the same time, or that two names of one target have."""

from typing import Any

import pytest
from sqlalchemy import Column, Engine, Integer, MetaData, Table, event, inspect, text

from dualwrite.coordinator.sql.decision_store import SqlDecisionStore
from dualwrite.spark.batch.runs import Owner, Runs
from dualwrite.spark.batch.staging import Staging, drop_outdated, make_staging
from dualwrite.spark.tables.target_table import target_of

pytestmark = pytest.mark.slow_cases("mariadb")


@pytest.fixture
def columns(engine: Engine) -> Any:
    """The columns of the target, a new table ``things``."""
    with engine.begin() as connection:
        Table("things", MetaData(), Column("n", Integer), Column("more", Integer)).create(connection)
        return target_of(connection, "things").columns[:1]


def test_a_driver_uses_the_staging_table_that_another_driver_makes_at_the_same_time(
    engine: Engine, columns: Any
) -> None:
    rivals = iter(["a rival"])
    made: list[Staging] = []

    @event.listens_for(engine, "before_cursor_execute")
    def overtake(connection: Any, cursor: Any, statement: str, *_: object) -> None:
        if "CREATE" in statement:
            made.extend(make_staging(engine, "things", columns) for _ in rivals)

    mine = make_staging(engine, "things", columns)
    assert [staging.qualified_name for staging in made] == [mine.qualified_name]


def test_a_staging_table_in_use_is_not_dropped_under_another_name_of_its_target(engine: Engine, columns: Any) -> None:
    schema = inspect(engine).default_schema_name
    runs = Runs(engine, Owner("driver", 100.0), SqlDecisionStore(engine))
    staging = make_staging(engine, f"{schema}.things", columns).qualified_name
    assert runs.begin("job", None, staging, 100.0) is not None
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE things DROP COLUMN n"))
        connection.execute(text("ALTER TABLE things ADD COLUMN n VARCHAR(40)"))
    drop_outdated(engine, "things", runs.is_staging)
    assert inspect(engine).has_table(staging[1], schema=schema)
    runs.end_job("job")
    drop_outdated(engine, f"{schema}.things", runs.is_staging)
    assert not inspect(engine).has_table(staging[1], schema=schema)
