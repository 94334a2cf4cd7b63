"""What a DualWrite accepts as its configuration, when it checks it, and how it is closed."""

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine
from sqlalchemy.orm import Session

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.rules.two_phase import OWNED_SETTINGS
from dualwrite.errors import (
    ConfigurationError,
    DatabaseNotReadyError,
    InvalidTransactionStateError,
    KafkaUnavailableError,
)
from tests.support.coordinator.event_table import CONFIG, ready_engine
from tests.support.coordinator.fake_kafka import FakeKafka, Fault
from tests.support.coordinator.usual_unit import EventModel, fail_at, in_both, write_unit

Make = Callable[..., DualWrite]


@pytest.mark.parametrize("key", sorted(OWNED_SETTINGS))
def test_settings_that_follow_from_the_recipe_are_refused_by_name(sqlite_engine: Engine, key: str) -> None:
    with pytest.raises(ConfigurationError, match=f'"{key}" is set by DualWrite'):
        DualWrite(sqlite_engine, {**CONFIG, key: "x"}, application="a")


@pytest.mark.parametrize(
    ("kafka", "application", "message"),
    [
        ({}, "a", "bootstrap.servers"),
        ({"bootstrap.servers": ""}, "a", "bootstrap.servers"),
        ({"bootstrap.servers": ["h:1", "i:2"]}, "a", '"bootstrap.servers" is a list: give one text, as "HOST:PORT,'),
        ("127.0.0.1:9092", "a", 'kafka is a str: give a dict, as {"bootstrap.servers": "HOST:PORT"}'),
        (None, "a", "kafka is a NoneType: give a dict"),
        (CONFIG, "", "application is empty"),
        (CONFIG, "a\n", "control character"),
        (CONFIG, "a" * 254, "255 characters"),
    ],
)
def test_a_missing_or_invalid_argument_is_named_in_the_error(
    sqlite_engine: Engine, kafka: Any, application: str, message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        DualWrite(sqlite_engine, kafka, application=application)


def test_an_invalid_engine_is_refused_by_its_type() -> None:
    with pytest.raises(ConfigurationError, match="engine is a str"):
        DualWrite("sqlite:///x.db", CONFIG, application="a")  # type: ignore[arg-type]


def test_the_participant_gets_the_users_configuration_and_the_transactional_id(make_dual_write: Make) -> None:
    seen: list[Any] = []
    kafka = FakeKafka()

    def make(config: Any) -> Any:
        seen.append(config)
        return kafka.participant()

    make_dual_write(participant=make).recover()
    assert seen == [{**CONFIG, "transactional.id": "orders-0"}]


def test_a_database_without_the_tables_is_refused_before_kafka_is_asked(
    make_dual_write: Make, tmp_path: Any, kafka: FakeKafka
) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'new.db'}")
    with pytest.raises(DatabaseNotReadyError, match="dualwrite db upgrade"):
        write_unit(make_dual_write(engine), "one")
    assert kafka.requests == []
    engine.dispose()


@pytest.mark.postgresql
def test_an_autocommit_engine_is_refused_before_the_user_code_runs(make_dual_write: Make, postgresql_url: str) -> None:
    ready_engine(postgresql_url).dispose()
    engine = create_engine(postgresql_url, isolation_level="AUTOCOMMIT")
    dual_write = make_dual_write(engine)
    with pytest.raises(ConfigurationError, match="AUTOCOMMIT"), dual_write.transaction():
        pytest.fail("the block ran")
    dual_write.close()
    engine.dispose()


def test_an_unreachable_kafka_at_the_first_use_is_retriable_and_keeps_no_lock(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    fail_at(kafka, "init-keep", times=2)
    for _ in range(2):
        with pytest.raises(KafkaUnavailableError):
            write_unit(dual_write, "one")
    assert not dual_write.pending()
    write_unit(dual_write, "one")
    assert in_both(sqlite_engine, kafka, "one")


def test_a_closed_dual_write_is_of_no_use_and_can_be_closed_again(
    make_dual_write: Make, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    with make_dual_write() as dual_write:
        write_unit(dual_write, "one")
    assert kafka.open_participants() == 0
    dual_write.close()
    with pytest.raises(InvalidTransactionStateError, match="closed"):
        write_unit(dual_write, "two")
    for wait in (True, False):
        with pytest.raises(InvalidTransactionStateError, match="closed"):
            dual_write.recover(wait=wait)
    assert in_both(sqlite_engine, kafka, "one")


def test_close_finishes_what_is_pending_if_it_can(
    make_dual_write: Make, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    with make_dual_write() as dual_write:
        fail_at(kafka, "commit")
        write_unit(dual_write, "one")
    assert in_both(sqlite_engine, kafka, "one")
    assert kafka.open_participants() == 0


def test_close_gives_up_on_what_it_cannot_finish_and_the_next_start_does(
    make_dual_write: Make, sqlite_engine: Engine, kafka: FakeKafka, caplog: pytest.LogCaptureFixture
) -> None:
    dual_write = make_dual_write()
    dual_write.recover()
    kafka.fault = lambda request: Fault.NONE if request in ("begin", "produce", "prepare") else Fault.BEFORE
    write_unit(dual_write, "one")
    dual_write.close(timeout=0.05)
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    expected = "closed, and 1 unit of work is not finished in Kafka (orders-0): recovery ends"
    assert any(expected in warning for warning in warnings), warnings  # the background may have logged since
    kafka.fault = lambda request: Fault.NONE
    make_dual_write().recover()
    assert in_both(sqlite_engine, kafka, "one")


def test_steps_are_observed_in_order(make_dual_write: Make) -> None:
    steps: list[str] = []
    write_unit(make_dual_write(on_step=steps.append), "one")
    assert steps == [
        "RECOVER_TAKE_OVER",
        "RECOVER_LOCK",
        "RECOVER_FENCE_KAFKA",
        "RECOVER_COMPLETE",
        "RECOVER_INIT",
        "BEGIN_DATABASE",
        "BEGIN_KAFKA",
        "PREPARE_KAFKA",
        "STORE_STATE",
        "COMMIT_DATABASE",
        "COMMIT_KAFKA",
    ]


def test_the_orm_session_of_a_unit_is_closed_with_it(dual_write: DualWrite) -> None:
    with dual_write.transaction() as tx:
        session: Session = tx.session
        model = EventModel(value="one")
        session.add(model)
        tx.produce("events", "one")
    assert model not in session
    assert model.value == "one", "what was loaded stays readable"
