"""The table of staged rows: made once, and moved into the target in the order of the partitions."""

from typing import Any

import pytest
from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, event, inspect, select

from dualwrite.coordinator.sql.dialects.postgresql.database import Postgresql
from dualwrite.errors import ConfigurationError, DatabaseBusyError
from dualwrite.spark.batch import staging
from dualwrite.spark.batch.runs import Run
from dualwrite.spark.batch.staging import Attempt, drop_outdated, make_staging, move_rows, staged_clause
from dualwrite.spark.tables.target_table import target_of
from tests.support.spark.staging_place import StagingPlace

pytestmark = pytest.mark.slow_cases("mariadb")


@pytest.fixture
def place(engine: Engine) -> StagingPlace:
    return StagingPlace(engine)


def test_a_target_that_was_changed_meanwhile_gets_no_rows(place: StagingPlace) -> None:
    staged, columns = [place.stage(0, 1, [(1, "a")])], place.columns
    with place.engine.begin() as connection:
        connection.exec_driver_sql(f"ALTER TABLE {place.dbtable} RENAME COLUMN note TO remark")
    with (
        pytest.raises(DatabaseBusyError, match="was changed while job 'job' was writing: run the batch again"),
        place.engine.begin() as connection,
    ):
        move_rows(connection, place.run, place.dbtable, columns, (), staged)
    with place.engine.begin() as connection:
        connection.exec_driver_sql(f"ALTER TABLE {place.dbtable} RENAME COLUMN remark TO note")
    assert place.move(staged) == 1


def test_a_target_that_is_gone_by_now_was_changed(place: StagingPlace) -> None:
    staged, columns = [place.stage(0, 1, [(1, "a")])], place.columns
    place.table.drop(place.engine)
    with (
        pytest.raises(DatabaseBusyError, match="was changed while job 'job' was writing: run the batch again"),
        place.engine.begin() as connection,
    ):
        move_rows(connection, place.run, place.dbtable, columns, (), staged)


@pytest.mark.postgresql
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_a_column_type_changed_during_the_move_rolls_the_batch_back(
    place: StagingPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert = Postgresql.insert

    def changed(self: Postgresql, *given: Any) -> Any:
        with place.engine.begin() as connection:
            connection.exec_driver_sql(f"ALTER TABLE {place.dbtable} ALTER COLUMN note TYPE text")
        return insert(self, *given)

    staged = [place.stage(0, 1, [(1, "a")])]
    monkeypatch.setattr(Postgresql, "insert", changed)
    with pytest.raises(DatabaseBusyError, match="was changed while job 'job' was writing"):
        place.move(staged)


@pytest.mark.postgresql
@pytest.mark.filterwarnings("ignore:Did not recognize type")
def test_an_unknown_type_is_refused_only_in_a_written_column(postgresql: Engine) -> None:
    with postgresql.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE places (id integer, at point, others point[])")
        by_name = {column.name: column for column in target_of(connection, "places").columns}
    assert make_staging(postgresql, "places", [by_name["id"]]).is_new
    for name in ("at", "others"):
        with pytest.raises(ConfigurationError, match=f"column '{name}' of table places has a type that the table of"):
            make_staging(postgresql, "places", [by_name["id"], by_name[name]])


@pytest.mark.postgresql
def test_a_type_that_was_replaced_by_one_of_its_name_gets_another_table(postgresql: Engine) -> None:
    with postgresql.begin() as connection:
        connection.exec_driver_sql("CREATE TYPE mood AS ENUM ('good')")
        connection.exec_driver_sql("CREATE TABLE moods (id integer, note mood)")
        columns = target_of(connection, "moods").columns
    before = make_staging(postgresql, "moods", columns).qualified_name
    assert make_staging(postgresql, "moods", columns).qualified_name == before
    with postgresql.begin() as connection:
        connection.exec_driver_sql("ALTER TYPE mood RENAME TO mood_old")
        connection.exec_driver_sql("CREATE TYPE mood AS ENUM ('good', 'bad')")
        connection.exec_driver_sql("ALTER TABLE moods ALTER COLUMN note TYPE mood USING note::text::mood")
    after = make_staging(postgresql, "moods", columns)
    assert (after.is_new, after.qualified_name == before) == (True, False)
    drop_outdated(postgresql, "moods", lambda _: False)
    assert not inspect(postgresql).has_table(before[1])
    with postgresql.begin() as connection:
        connection.exec_driver_sql("DROP TYPE mood_old")


@pytest.mark.parametrize("name", ["dualwrite_run", "dualwrite_row", "Dualwrite_Part", "dualwrite_rank"])
def test_a_column_named_like_a_mark_column_is_refused(engine: Engine, name: str) -> None:
    with engine.begin() as connection:
        Table("marked", MetaData(), Column("id", Integer), Column(name, Integer)).create(connection)
        columns = target_of(connection, "marked").columns
    with pytest.raises(ConfigurationError, match=f"^column '{name}' of table marked has the name of .* rename it, or "):
        make_staging(engine, "marked", columns)
    assert inspect(engine).get_table_names().count("marked") == 1
    assert not [table for table in inspect(engine).get_table_names() if table.startswith("dualwrite_staged")]


def test_rows_are_moved_in_the_order_of_partitions_and_in_each_as_they_came(place: StagingPlace) -> None:
    late = place.stage(1, 10, [(3, "c"), (4, "d")])
    early = place.stage(0, 11, [(2, "b"), (1, "a")])
    assert place.move([late, early]) == 4
    assert place.stored() == [(2, "b"), (1, "a"), (3, "c"), (4, "d")]


@pytest.mark.postgresql
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_rows_without_statistics_are_read_in_the_order_of_the_key_and_not_sorted(place: StagingPlace) -> None:
    plans: list[str] = []

    @event.listens_for(place.engine, "before_cursor_execute")
    def explain(connection: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if statement.startswith("INSERT INTO things "):
            plans.append("\n".join(row[0] for row in cursor.execute(f"EXPLAIN {statement}", parameters).fetchall()))

    attempts = [place.stage(part, 10 - part, [(part * 10 + number, "a") for number in range(10)]) for part in range(4)]
    place.move(attempts)
    assert place.stored() == [(number, "a") for number in range(40)]
    (plan,) = plans
    assert "Index Scan" in plan
    assert "Sort" not in plan
    with place.engine.connect() as connection:
        move_rows(connection, place.run, place.dbtable, place.columns, (), [])
        assert connection.exec_driver_sql("SHOW enable_sort").scalar() == "on", "the caller goes on"


def test_rows_of_losing_attempts_and_other_runs_are_not_moved(place: StagingPlace) -> None:
    winner = place.stage(0, 1, [(1, "a")])
    place.stage(0, 2, [(1, "a")])
    place.stage(1, 3, [(9, "of a loser")])
    place.stage(0, 1, [(8, "of another run")], run=8)
    assert place.move([winner]) == 1
    assert place.stored() == [(1, "a")]


def test_a_later_row_replaces_an_earlier_one_within_a_partition_and_across(place: StagingPlace) -> None:
    place.move([place.stage(0, 1, [(1, "old"), (2, "old")])])
    attempts = [
        place.stage(0, 5, [(1, "first"), (1, "second"), (3, "new")]),
        place.stage(2, 3, [(1, "last")]),
        place.stage(1, 4, [(1, "between"), (3, "newer")]),
    ]
    assert place.move(attempts, ["order"]) == 6
    assert sorted(place.stored()) == [(1, "last"), (2, "old"), (3, "newer")]


def test_rows_whose_key_is_null_are_all_added(place: StagingPlace) -> None:
    attempts = [place.stage(0, 1, [(None, "a"), (None, "b")]), place.stage(1, 2, [(None, "c")])]
    place.move(attempts, ["order"])
    assert sorted(note for _, note in place.stored()) == ["a", "b", "c"]


def test_a_table_of_key_columns_only_can_be_upserted(engine: Engine) -> None:
    place = StagingPlace(engine)
    place.names = ["order"]
    place.run = Run("job", 7, place.make())
    for _ in range(2):
        place.move([place.stage(0, 1, [(1,), (1,), (2,)], run=7)], ["order"])
        with engine.begin() as connection:
            connection.execute(staged_clause(place.run.staging, place.dbtable, place.columns).delete())
    assert [order for order, _ in place.stored()] == [1, 2]


def test_many_attempts_are_moved_in_the_order_of_partitions_by_several_statements(
    place: StagingPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging, "ATTEMPTS", 3)
    attempts = [place.stage(part, 100 - part, [(part % 2, f"{part}")]) for part in range(10)]
    assert place.move(attempts[::-1], ["order"]) == 10
    assert sorted(place.stored()) == [(0, "8"), (1, "9")]


def test_staged_rows_that_the_database_has_lost_are_noticed(place: StagingPlace) -> None:
    attempt = place.stage(0, 1, [(1, "a")])
    with pytest.raises(DatabaseBusyError, match="2 rows of job 'job' were staged, and 1 are left"):
        place.move([attempt._replace(rows=2)])
    assert DatabaseBusyError.retriable


def test_nothing_staged_moves_nothing(place: StagingPlace) -> None:
    assert place.move([]) == place.move([Attempt(0, 1, 0)]) == 0
    assert place.stored() == []


def test_the_table_is_made_once_for_the_same_columns_and_anew_for_others(place: StagingPlace) -> None:
    before = place.make()
    assert place.make() == before == place.run.staging
    place.names = ["note", "order"]
    assert place.make() != before
    assert len([name for name in inspect(place.engine).get_table_names() if name.startswith("dualwrite_staged")]) == 2


def test_a_column_that_changes_its_type_gets_a_table_of_its_own(place: StagingPlace) -> None:
    before = place.make()
    place.table.drop(place.engine)
    changed = Table("things", MetaData(), Column("order", Integer), Column("note", String(40)))
    changed.create(place.engine)
    assert place.make() != before


def test_values_that_are_staged_are_moved_as_they_are(engine: Engine) -> None:
    place = StagingPlace(engine, "a table, of some length, with a Name")
    place.names = ["price", "note"]
    place.run = Run("job", 7, place.make())
    place.move([place.stage(0, 1, [(12.5, "ä€𝄞"), (None, None)])])
    with engine.connect() as connection:
        rows = connection.execute(select(place.table.c.price, place.table.c.note).order_by(place.table.c.seq)).all()
    assert [(None if price is None else float(price), note) for price, note in rows] == [(12.5, "ä€𝄞"), (None, None)]


def test_without_the_right_to_create_tables_the_error_has_the_statement(place: StagingPlace) -> None:
    if place.engine.dialect.name != "postgresql":
        pytest.skip("rights are PostgreSQL's here")
    place.names = ["note"]
    with place.engine.begin() as connection:
        connection.exec_driver_sql("CREATE ROLE writer_of_rows")
        connection.exec_driver_sql('GRANT SELECT ON "things" TO writer_of_rows')
    with place.engine.connect() as connection:
        connection.exec_driver_sql("SET ROLE writer_of_rows")
        connection.commit()
    try:
        with pytest.raises(
            ConfigurationError,
            match=r"cannot be made \(permission denied for schema public\): have it made by CREATE UNLOGGED TABLE",
        ):
            place.make()
    finally:
        place.engine.dispose()
        with place.engine.begin() as connection:
            connection.exec_driver_sql("DROP OWNED BY writer_of_rows; DROP ROLE writer_of_rows")


@pytest.mark.parametrize("change", ["DROP TABLE things", "ALTER TABLE things DROP COLUMN note"])
def test_a_target_that_was_changed_since_its_check_has_no_staging_table_made(sqlite: Engine, change: str) -> None:
    with sqlite.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE things (id INTEGER PRIMARY KEY, note VARCHAR(9))")
        columns = target_of(connection, "things").columns
        connection.exec_driver_sql(change)
    with pytest.raises(DatabaseBusyError, match=r"^table things was changed meanwhile: run the batch again$"):
        make_staging(sqlite, "things", columns)


def test_a_column_of_an_unknown_type_is_named(sqlite: Engine) -> None:
    with sqlite.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE things (id INTEGER PRIMARY KEY, anything)")
        columns = target_of(connection, "things").columns
    with pytest.raises(ConfigurationError, match="column 'anything' of table things has a type that the table of"):
        make_staging(sqlite, "things", columns)
    assert make_staging(sqlite, "things", columns[:1])
