"""The looks at a real broker and a real database: what waits behind a transaction, Spark's runs, the doctor."""

from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import insert

from dualwrite.console.lag import MOST_GROUPS, WaitingGroup, look_at_lag
from dualwrite.console.looks import Place, look_at_both, look_at_findings, look_at_kafka, look_at_spark
from dualwrite.coordinator.sql.tables import spark_run
from dualwrite.ids import TopicPartition
from dualwrite.operations.findings import Level
from dualwrite.operations.spark_runs import open_runs
from tests.support.console.served import console_of
from tests.support.operations.histories import NOW
from tests.support.operations.places import OperationsSite


@pytest.fixture
def place(site: OperationsSite) -> Place:
    return Place(site.engine, site.broker.client_config, site.application)


def insert_run(site: OperationsSite, job: str, state: str, seconds: float, schema: str | None = None) -> None:
    with site.engine.begin() as connection:
        connection.execute(
            insert(spark_run).values(
                job=job,
                run_id=7,
                state=state,
                staging_schema=schema,
                staging_table="stage",
                expires_at=NOW + timedelta(seconds=seconds),
                updated_at=NOW,
            )
        )


def commit_offset(site: OperationsSite, group: str) -> None:
    """Let ``group`` have read the topic to its last stable offset."""
    done = site.run("groups", "reset-offsets", group, "--topic", site.topic, "--to", "end", "--yes", db=False)
    assert done.code == 0, done.err


def test_an_application_without_a_slot_is_named_if_others_have_some(site: OperationsSite, place: Place) -> None:
    assert look_at_both(place).unknown == "", "none has started yet"
    site.write("one")
    assert look_at_both(place).unknown == ""
    other = replace(place, application="ordres")
    assert look_at_both(other).unknown == (
        f"application 'ordres' has no slot in this database; those that have: {site.application}"
    )


def test_a_held_back_partition_names_the_transaction_and_the_groups_that_wait(
    site: OperationsSite, place: Place
) -> None:
    site.write("visible")
    group = f"readers-of-{site.application}"
    commit_offset(site, group)
    assert look_at_lag(place).held == ()
    site.leave("hidden")
    (held,) = look_at_lag(place).held
    assert held.partition == TopicPartition(site.topic, 0)
    assert (held.holder, held.held_back) == (site.slot(1), 1)
    assert held.since is not None
    assert held.last_stable_offset == (held.high_watermark or 0) - 1
    assert held.groups == (WaitingGroup(group, 0),)


def test_the_lag_of_another_application_is_not_shown(site: OperationsSite, place: Place) -> None:
    site.leave("hidden")
    other = Place(site.engine, site.broker.client_config, "other")
    assert look_at_lag(other).held == ()
    assert look_at_kafka(other).open_views == ()
    everyone = look_at_lag(Place(site.engine, site.broker.client_config))
    assert site.slot() in {held.holder for held in everyone.held}


def test_of_many_groups_some_are_looked_at_and_that_is_told(
    site: OperationsSite, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2):
        commit_offset(site, f"g{number}-{site.application}")
    site.leave("hidden")
    monkeypatch.setattr("dualwrite.console.lag.MOST_GROUPS", 1)
    notes = look_at_lag(place).notes
    assert [note for note in notes if note.startswith("only 1 of ")]
    assert MOST_GROUPS > 1


def test_only_open_runs_of_spark_are_shown_with_the_time_that_is_left(site: OperationsSite, place: Place) -> None:
    insert_run(site, "committed", "committed", 3600)
    insert_run(site, "late", "open", -3600)
    insert_run(site, "nightly", "open", 3600, schema="s")
    late, nightly = look_at_spark(place)
    assert (late.job, late.run_id, late.staging, late.is_overdue) == ("late", 7, "stage", True)
    assert (nightly.job, nightly.staging, nightly.is_overdue) == ("nightly", "s.stage", False)
    assert 0 < nightly.remaining <= 3600
    assert [run.job for run in open_runs(site.engine)] == ["late", "nightly"]


def test_the_doctor_finds_no_failure_and_begins_no_producer(site: OperationsSite, place: Place) -> None:
    findings = look_at_findings(place)
    assert {finding.check for finding in findings} >= {"clock", "identity", "outcomes"}
    assert not [finding for finding in findings if finding.level is Level.FAILURE]
    assert site.described(f"{site.application}-doctor") is None


def test_the_page_shows_all_of_it(site: OperationsSite) -> None:
    insert_run(site, "nightly", "open", 3600)
    site.leave("hidden")
    with console_of(site) as console:
        lag = console.until("lag", lambda text: "<td>" in text)
        assert f"<td>{site.topic}-0</td>" in lag
        assert f"<td>{site.slot()}</td>" in lag
        assert "<td>nightly</td>" in console.until("spark", lambda text: "<td>" in text)
        assert "other applications" in console.until("doctor", lambda text: "checks" in text)
