"""The task of the Airflow example, without Airflow: it is done once on both sides, though its attempts are killed.

tests/examples/airflow_trial.py runs the example in a real Airflow.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Engine, create_engine, text

from dualwrite.cli.db import upgrade
from dualwrite.testing.kafka import KafkaBroker
from tests.support.examples import programs
from tests.support.examples.airflow_strikes import Hold
from tests.support.examples.strikes import Strikes
from tests.support.waiting import PATIENCE_SECONDS

Attempt = Callable[..., "subprocess.Popen[str]"]

BEFORE_THE_DECISION = ["INSERTED", "PREPARE_KAFKA", "STORE_STATE", "COMMIT_DATABASE"]
AFTER_THE_DECISION = ["COMMIT_KAFKA", "CLOSED"]


@pytest.fixture
def broker(kafka_broker_factory: Callable[[], KafkaBroker]) -> KafkaBroker:
    return kafka_broker_factory()


@pytest.fixture
def strikes(tmp_path: Path) -> Strikes:
    return Strikes(tmp_path / "strikes", [])


@pytest.fixture
def attempt(broker: KafkaBroker, strikes: Strikes) -> Attempt:
    """Starts an attempt of a task instance."""

    def start(engine: Engine, *, run: str = "r", number: str = "o-1") -> "subprocess.Popen[str]":
        url = engine.url.render_as_string(hide_password=False)
        return subprocess.Popen(
            [sys.executable, "-m", "tests.support.examples.struck_airflow", run, number],
            env=programs.environment(DATABASE_URL=url, KAFKA=broker.bootstrap_servers, **strikes.environment),
            stderr=subprocess.PIPE,
            text=True,
        )

    return start


def end_of(process: "subprocess.Popen[str]") -> tuple[int, bool]:
    """The exit code, and whether the attempt has found that a former one had done it."""
    _, log = process.communicate(timeout=PATIENCE_SECONDS)
    print(log)
    return process.returncode, "done already" in log


def numbers_in_both(engine: Engine, broker: KafkaBroker, count: int) -> list[str]:
    """The numbers of the orders on both sides, which are the same."""
    records = [(record.key or b"").decode() for record in broker.read("airflow-orders", minimum=count)]
    with engine.connect() as connection:
        rows = list(connection.scalars(text("SELECT number FROM airflow_orders ORDER BY number")))
    assert sorted(records) == rows
    return rows


@pytest.mark.crash
@pytest.mark.slow_cases("PREPARE_KAFKA", "STORE_STATE", "CLOSED")
@pytest.mark.parametrize("moment", BEFORE_THE_DECISION + AFTER_THE_DECISION)
def test_an_order_is_placed_once_though_the_first_attempt_is_killed(
    attempt: Attempt, strikes: Strikes, dualwrite_engine: Engine, broker: KafkaBroker, moment: str
) -> None:
    (strikes.directory / f"{moment}-o-1").touch()
    assert end_of(attempt(dualwrite_engine))[0] == -signal.SIGKILL
    assert end_of(attempt(dualwrite_engine)) == (0, moment in AFTER_THE_DECISION)
    assert numbers_in_both(dualwrite_engine, broker, 1) == ["o-1"]


def test_another_run_places_an_order_of_its_own(
    attempt: Attempt, dualwrite_engine: Engine, broker: KafkaBroker
) -> None:
    for run, number in (("r-1", "o-1"), ("r-2", "o-2"), ("r-1", "o-1")):
        assert end_of(attempt(dualwrite_engine, run=run, number=number))[0] == 0
    assert numbers_in_both(dualwrite_engine, broker, 2) == ["o-1", "o-2"]


@pytest.mark.parametrize(
    ("moment", "exit_code", "is_done"), [("INSERTED", 1, False), ("COMMIT_KAFKA", 0, True)], ids=["before", "after"]
)
def test_a_time_limit_fails_the_task_before_the_decision_only(
    attempt: Attempt, strikes: Strikes, dualwrite_engine: Engine, broker: KafkaBroker,
    moment: str, exit_code: int, is_done: bool,
) -> None:  # fmt: skip
    with Hold(strikes.directory, f"{moment}-o-1") as hold:
        first = attempt(dualwrite_engine)
        os.kill(hold.process(), signal.SIGALRM)
        assert end_of(first) == (exit_code, False)
    assert end_of(attempt(dualwrite_engine)) == (0, is_done)
    assert numbers_in_both(dualwrite_engine, broker, 1) == ["o-1"]


@pytest.mark.postgresql
def test_a_second_attempt_that_runs_at_the_same_time_waits_for_the_first(
    attempt: Attempt, strikes: Strikes, postgresql_url: str, broker: KafkaBroker
) -> None:
    upgrade(postgresql_url)
    engine = create_engine(postgresql_url)
    with Hold(strikes.directory, "INSERTED-o-1") as hold:
        first = attempt(engine)
        hold.process()
        second = attempt(engine)
    assert end_of(first) == (0, False)
    assert end_of(second) == (0, True)
    assert numbers_in_both(engine, broker, 1) == ["o-1"]
    engine.dispose()
