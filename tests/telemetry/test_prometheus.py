"""The metrics in Prometheus' text format: each by its name and labels."""

import gc
import re
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from sqlalchemy import Engine, create_engine, event, insert, text

from dualwrite.cli import db
from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.sql.tables import kafka_transaction_outcome
from dualwrite.errors import NoFreeSlotError
from dualwrite.telemetry import database_looks
from dualwrite.telemetry.prometheus import DURATION, IN_DATABASE, METRICS, PREFIX, DualWriteMetrics
from tests.support.coordinator.event_table import CONFIG, expire_leases
from tests.support.coordinator.fake_kafka import FakeKafka, Fault

Make = Callable[..., DualWrite]


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def metrics(registry: CollectorRegistry) -> DualWriteMetrics:
    return DualWriteMetrics(registry)


def told(registry: CollectorRegistry) -> dict[str, float]:
    """What is scraped, by name and labels as the text format writes them."""
    lines = generate_latest(registry).decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}


def write(dual_write: DualWrite, *, fails: bool = False) -> None:
    with dual_write.transaction() as tx:
        tx.produce("events", value="one")
        if fails:
            raise KeyError


def test_units_are_counted_and_timed_by_their_result(
    make: Make, metrics: DualWriteMetrics, registry: CollectorRegistry
) -> None:
    dual_write = make()
    metrics.watch(dual_write)
    write(dual_write)
    write(dual_write)
    with pytest.raises(KeyError):
        write(dual_write, fails=True)
    dual_write.counters.add("dead_letters", 3)
    said = told(registry)
    for result, count in (("committed", 2), ("rolled_back", 1), ("in_doubt", 0)):
        labels = f'{{application="orders",result="{result}"}}'
        assert said[f"dualwrite_units_total{labels}"] == count
        assert said[f"dualwrite_unit_duration_seconds_count{labels}"] == count
    assert said['dualwrite_unit_duration_seconds_sum{application="orders",result="committed"}'] > 0
    assert said['dualwrite_recoveries_total{application="orders"}'] == 1
    assert said['dualwrite_dead_letters_total{application="orders"}'] == 3
    assert said['dualwrite_pool_size{application="orders"}'] == 1
    assert said['dualwrite_process_slots{application="orders",state="idle"}'] == 1


def test_units_that_the_background_must_finish_are_counted_as_pending(
    make: Make, kafka: FakeKafka, metrics: DualWriteMetrics, registry: CollectorRegistry
) -> None:
    dual_write = make()
    metrics.watch(dual_write)
    away = {"commit", "init-keep"}
    write(dual_write)
    kafka.fault = lambda request: Fault.BEFORE if request in away else Fault.NONE
    write(dual_write)
    said = told(registry)
    assert said['dualwrite_pending_units{application="orders"}'] == 1
    assert said['dualwrite_process_slots{application="orders",state="pending"}'] == 1
    assert said['dualwrite_units_finished_later_total{application="orders"}'] == 1
    assert said['dualwrite_units_total{application="orders",result="committed"}'] == 2, "it is in both, or will be"
    away.clear()


def test_a_unit_that_got_no_slot_has_a_duration_too(
    make: Make, metrics: DualWriteMetrics, registry: CollectorRegistry
) -> None:
    holder, waiter = make(), make(acquire_timeout=0)
    metrics.watch(waiter)
    write(holder)
    with pytest.raises(NoFreeSlotError):
        write(waiter)
    said = told(registry)
    assert said['dualwrite_unit_duration_seconds_count{application="orders",result="no_slot"}'] == 1
    assert said['dualwrite_units_total{application="orders",result="rolled_back"}'] == 0


def test_applications_have_separate_metrics(make: Make, metrics: DualWriteMetrics, registry: CollectorRegistry) -> None:
    one, two = make("one"), make("two")
    metrics.watch(one)
    metrics.watch(two)
    write(one)
    said = told(registry)
    assert said['dualwrite_units_total{application="one",result="committed"}'] == 1
    assert said['dualwrite_units_total{application="two",result="committed"}'] == 0


def test_with_an_engine_the_databases_metrics_are_reported(
    engine: Engine, make: Make, metrics: DualWriteMetrics, registry: CollectorRegistry
) -> None:
    first, second = make(pool_size=3), make(pool_size=3)
    metrics.watch(first, engine)
    write(first)
    write(second)
    said = told(registry)
    assert said['dualwrite_application_slots{application="orders",state="leased"}'] == 2
    assert said['dualwrite_application_slots{application="orders",state="free"}'] == 1  # it has no row yet
    assert said['dualwrite_heuristic_outcomes{application="orders"}'] == 0
    expire_leases(engine)
    with engine.begin() as connection:
        found = {"outcome": "heuristic abort", "detail": "", "found_at": text("CURRENT_TIMESTAMP")}
        adding = insert(kafka_transaction_outcome).values(prepared_txn_state="1:2", **found)
        for name in ("orders-0", "orders-7", "others-0"):
            connection.execute(adding, {"transactional_id": name})
    said = told(registry)
    assert said['dualwrite_application_slots{application="orders",state="left"}'] == 2
    assert said['dualwrite_heuristic_outcomes{application="orders"}'] == 2


def test_an_unavailable_database_hides_only_its_own_metrics(
    make: Make, metrics: DualWriteMetrics, registry: CollectorRegistry, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    dual_write = make()
    metrics.watch(dual_write, create_engine(f"sqlite:///{tmp_path / 'none.db'}"))
    write(dual_write)
    said = told(registry)
    assert said['dualwrite_units_total{application="orders",result="committed"}'] == 1
    assert not any(name.startswith("dualwrite_application_slots") for name in said)
    assert "the database's metrics are not available" in caplog.text


def test_a_database_that_stays_silent_does_not_keep_a_scrape_waiting(
    make: Make,
    metrics: DualWriteMetrics,
    registry: CollectorRegistry,
    engine: Engine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    dual_write, silent, asked = make(), create_engine(engine.url), threading.Semaphore(0)
    answers = threading.Event()

    def connect(*_: object) -> None:
        asked.release()
        answers.wait()

    event.listen(silent, "do_connect", connect)
    metrics.watch(dual_write, silent)
    write(dual_write)
    leased = 'dualwrite_application_slots{application="orders",state="leased"}'
    with monkeypatch.context() as patch:
        patch.setattr(database_looks, "LONGEST_SECONDS", 0.0)
        for _ in range(3):
            said = told(registry)
            assert said['dualwrite_units_total{application="orders",result="committed"}'] == 1
            assert leased not in said
    assert "the database's metrics are not available: no answer in 0 s" in caplog.text
    assert asked.acquire(timeout=60)
    assert not asked.acquire(blocking=False), "one look for all scrapes"
    answers.set()
    assert told(registry)[leased] == 1
    silent.dispose()


def test_the_databases_metrics_are_reported_where_no_thread_can_start(
    make: Make, metrics: DualWriteMetrics, registry: CollectorRegistry, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in an exit handler that pushes the last counts: from Python 3.12 on no thread can start there."""

    def refused(*_: object) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    dual_write = make()
    metrics.watch(dual_write, engine)
    write(dual_write)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refused)
        said = told(registry)
    assert said['dualwrite_application_slots{application="orders",state="leased"}'] == 1


def test_the_engine_of_a_collected_dual_write_is_collected(
    metrics: DualWriteMetrics, registry: CollectorRegistry, engine: Engine
) -> None:
    own = create_engine(engine.url)
    passing = DualWrite(own, CONFIG, application="passing", participant=FakeKafka().participant)
    metrics.watch(passing, own)
    assert 'dualwrite_heuristic_outcomes{application="passing"}' in told(registry)
    passing.close()
    own.dispose()
    reference = weakref.ref(own)
    del passing, own
    gc.collect()
    assert 'dualwrite_heuristic_outcomes{application="passing"}' not in told(registry)
    gc.collect()
    assert reference() is None


def test_a_closed_dual_write_is_no_longer_reported(
    metrics: DualWriteMetrics, registry: CollectorRegistry, engine: Engine
) -> None:
    dual_write = DualWrite(
        engine, {"bootstrap.servers": "x"}, application="orders", participant=FakeKafka().participant
    )
    metrics.watch(dual_write)
    assert 'dualwrite_pool_size{application="orders"}' in told(registry)
    dual_write.close()
    del dual_write
    gc.collect()
    assert 'dualwrite_pool_size{application="orders"}' not in told(registry)


def test_counters_do_not_fall_if_one_of_several_dual_writes_is_collected(
    make: Make, metrics: DualWriteMetrics, registry: CollectorRegistry, engine: Engine
) -> None:
    """Prometheus takes a counter that falls for one that began again, and adds what is left a second time."""
    staying = make()
    metrics.watch(staying)
    write(staying)
    staying.close()
    passing = DualWrite(engine, CONFIG, application="orders", participant=FakeKafka().participant)
    metrics.watch(passing)
    write(passing)
    committed = 'dualwrite_units_total{application="orders",result="committed"}'
    assert told(registry)[committed] == 2
    write(passing)
    passing.close()
    del passing
    gc.collect()
    for _ in range(2):
        said = told(registry)
        assert said[committed] == 3, "with what was counted after the last scrape"
        assert said['dualwrite_recoveries_total{application="orders"}'] == 2
        assert said['dualwrite_pool_size{application="orders"}'] == 1


def test_a_second_object_adds_to_the_metrics_of_its_registry(
    make: Make, metrics: DualWriteMetrics, registry: CollectorRegistry, engine: Engine
) -> None:
    """Two parts of a program need not know of each other."""
    one, two = make(application="one"), make(application="two")
    metrics.watch(one)
    again = DualWriteMetrics(registry)
    again.watch(one, engine)
    again.watch(two)
    write(one)
    said = told(registry)
    assert said['dualwrite_units_total{application="one",result="committed"}'] == 1
    assert said['dualwrite_unit_duration_seconds_count{application="one",result="committed"}'] == 1
    assert said['dualwrite_application_slots{application="one",state="leased"}'] == 1
    assert 'dualwrite_pool_size{application="two"}' in said


def test_dual_writes_of_one_application_are_reported_together(
    make: Make, metrics: DualWriteMetrics, registry: CollectorRegistry, engine: Engine
) -> None:
    """A web service may have a blocking and an asynchronous one. Prometheus keeps one of two samples with the same
    name and labels."""
    one, two = make(pool_size=3), make(pool_size=4)
    metrics.watch(one, engine)
    another_engine = create_engine(engine.url)
    metrics.watch(two, another_engine)
    write(one)
    write(two)
    write(two)
    lines = [line for line in generate_latest(registry).decode().splitlines() if line[0] != "#"]
    names = [line.rpartition(" ")[0] for line in lines]
    assert len(names) == len(set(names))
    said = told(registry)
    assert said['dualwrite_units_total{application="orders",result="committed"}'] == 3
    assert said['dualwrite_process_slots{application="orders",state="idle"}'] == 2
    assert said['dualwrite_pool_size{application="orders"}'] == 4
    assert said['dualwrite_application_slots{application="orders",state="leased"}'] == 2
    assert said['dualwrite_application_slots{application="orders",state="free"}'] == 2
    another_engine.dispose()


def test_the_slots_of_a_declared_copy_are_reported_under_the_applications_name(
    make: Make, metrics: DualWriteMetrics, registry: CollectorRegistry, engine: Engine
) -> None:
    db.copied(str(engine.url))
    dual_write = make(pool_size=3)
    metrics.watch(dual_write, engine)
    write(dual_write)
    said = told(registry)
    assert said['dualwrite_application_slots{application="orders",state="leased"}'] == 1
    assert said['dualwrite_application_slots{application="orders",state="free"}'] == 2


def test_every_metric_is_called_as_prometheus_would_have_it() -> None:
    for metric in (*METRICS, *IN_DATABASE):
        assert re.fullmatch("[a-z_]+", metric.name)
        assert metric.name.endswith("_total") is (metric.kind == "counter")
        assert metric.meaning.endswith(".")


def test_the_page_names_every_metric() -> None:
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text(encoding="utf-8")
    for metric in (*METRICS, *IN_DATABASE):
        assert f"`{PREFIX}{metric.name}`" in page
    assert f"`{PREFIX}{DURATION}`" in page


@pytest.mark.slow
def test_telemetry_is_not_imported_unless_it_is_used() -> None:
    code = (
        "import sys, dualwrite.coordinator.dual_write\n"
        "print(sorted({'prometheus_client', 'opentelemetry', 'dualwrite.telemetry'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
