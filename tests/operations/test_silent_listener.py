"""A host that accepts the connection of the database's driver and then says nothing: every command ends in time, with
one line."""

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url

from dualwrite.cli.database import CONNECT_SECONDS, database
from dualwrite.coordinator.sql.dialects.supported import database_at
from dualwrite.errors import DatabaseUnavailableError
from dualwrite.operations.timeout_checks import check_timeouts
from dualwrite.testing.kafka import KafkaBroker
from tests.support.operations.places import command
from tests.support.servers.round_trip_proxy import TurnsProxy
from tests.support.waiting import PATIENCE_SECONDS

SHORT = 0.3
SAID = (
    f"the database accepted no connection within {SHORT:g} s (connect_timeout): see whether its host is reachable, and "
    "the server answers"
)
DRIVERS = ("postgresql+psycopg", "postgresql+psycopg2", "mysql+pymysql", "mariadb+pymysql")


@pytest.fixture
def silent() -> Iterator[str]:
    """HOST:PORT of a listener: the system accepts connections, and nobody reads them."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dualwrite.cli.database.CONNECT_SECONDS", SHORT)


@pytest.mark.usefixtures("_short")
@pytest.mark.parametrize("driver", DRIVERS)
def test_every_driver_gives_up(driver: str, silent: str) -> None:
    url = f"{driver}://me:secret@{silent}/x"
    with pytest.raises(DatabaseUnavailableError) as refused, database(url, must_exist=True) as engine:
        engine.connect()
    assert str(refused.value) == SAID


VERBS = {
    "acknowledge": ("transactions", "acknowledge", "1", "--by", "me"),
    "compare": ("compare", "--table", "t", "--topic", "t", "--key", "id"),
    "copied": ("db", "copied"),
    "current": ("db", "current"),
    "demo": ("demo", "--rows", "500"),
    "describe": ("transactions", "describe", "a-0"),
    "downgrade": ("db", "downgrade", "base"),
    "list": ("transactions", "list"),
    "load": ("load", "FILE", "--table", "t", "--topic", "t"),
    "moved": ("db", "moved"),
    "moved --yes": ("db", "moved", "--yes"),
    "recover": ("recover", "--application", "a"),
    "resolve": ("transactions", "resolve", "a-0", "--yes"),
    "terminate": ("transactions", "terminate", "a-0", "--yes"),
    "upgrade": ("db", "upgrade"),
    "watch": ("transactions", "list", "--watch"),
}
WITHOUT_A_CLUSTER = ("acknowledge", "copied", "current", "demo", "downgrade", "moved", "moved --yes", "upgrade")


@pytest.mark.slow_cases
@pytest.mark.usefixtures("_short")
@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_ends_with_one_line(verb: str, silent: str, broker: KafkaBroker, tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("id\n1\n")
    words = [str(file) if word == "FILE" else word for word in VERBS[verb]]
    cluster = [] if verb in WITHOUT_A_CLUSTER else ["--bootstrap-servers", broker.bootstrap_servers]
    code, out, err = command(*words, *cluster, "--db", f"postgresql+psycopg://me:secret@{silent}/x")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert ("nothing was done: db moved needs --yes" if verb == "moved" else SAID) in err


@pytest.mark.usefixtures("_short")
def test_the_doctor_goes_on_with_the_cluster(silent: str, broker: KafkaBroker) -> None:
    places = ("--db", f"mysql+pymysql://me:secret@{silent}/x", "--bootstrap-servers", broker.bootstrap_servers)
    code, out, err = command("doctor", *places)
    assert (code, err) == (1, "")
    assert out.splitlines()[0] == f"failure  database: {SAID}"
    assert "ok       brokers: 1 answered" in out


@pytest.mark.postgresql
def test_the_doctor_still_misses_the_drivers_own_timeout(postgresql_url: str) -> None:
    """The limit of the command is not a setting of the driver, which an application would lack."""
    proxy = TurnsProxy(postgresql_url)
    try:
        with database(proxy.url.render_as_string(hide_password=False), must_exist=True) as engine:
            by_command = [finding.message for finding in check_timeouts(engine)]
        engine = create_engine(proxy.url)
        assert by_command == [finding.message for finding in check_timeouts(engine)]
        engine.dispose()
    finally:
        proxy.close()
    assert any(message.startswith("connect_timeout is not set") for message in by_command)


@pytest.mark.slow_cases
@pytest.mark.parametrize(
    ("url", "driver_ends", "seconds"),
    [
        ("postgresql+psycopg2", "connect_timeout=1", None),
        ("mysql+pymysql", "read_timeout=1", None),
        ("mysql+pymysql", "connect_timeout=40", 40.0),
        ("mysql+pymysql", "connect_timeout=3", CONNECT_SECONDS),
        ("postgresql+psycopg", "connect_timeout=0", CONNECT_SECONDS),
        ("postgresql+psycopg", "connect_timeout=soon", CONNECT_SECONDS),
        ("postgresql+psycopg", "", CONNECT_SECONDS),
    ],
)
def test_a_timeout_in_the_url_takes_precedence(
    url: str, driver_ends: str, seconds: float | None, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed = make_url(f"{url}://me@{silent}/x?{driver_ends}")
    limit = database_at(parsed).connect_limit(parsed, CONNECT_SECONDS)
    assert limit == (float("inf") if seconds is None else seconds)
    if seconds is None:  # the driver's own error, and not the command's
        monkeypatch.setattr("dualwrite.cli.database.CONNECT_SECONDS", SHORT)
        code, out, err = command("db", "current", "--db", str(parsed))
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert err.startswith(f"dualwrite: database {parsed}: ")


def test_ctrl_c_ends_the_wait() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE_SECONDS)
        url = f"mysql+pymysql://me@127.0.0.1:{listener.getsockname()[1]}/x"
        words = [sys.executable, "-m", "dualwrite", "db", "current", "--db", url]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            connection, _ = listener.accept()
            with connection:
                began = time.monotonic()
                process.send_signal(signal.SIGINT)
                out, err = process.communicate(timeout=PATIENCE_SECONDS)
    assert (process.returncode, out, err) == (130, "", "")
    assert time.monotonic() - began < CONNECT_SECONDS / 2
