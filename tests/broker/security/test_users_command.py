"""``dualwrite broker users``: on a data directory, on a running broker, and with passwords that are never arguments."""

import io
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.cli.main import main
from dualwrite.wire.error_codes import ErrorCode
from tests.support.forked import ForkedBroker
from tests.support.requests.calls import unique
from tests.support.requests.raw_client import RawClient
from tests.support.requests.sasl_calls import ALICE, CONFIG, OPEN, PASSWORD, SASL, add_users, log_in

USERS = ["broker", "users"]
BOTH = ["SCRAM-SHA-256", "SCRAM-SHA-512"]


class TerminalInput(io.StringIO):
    """A standard input at which a person sits."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    data_dir = tmp_path_factory.mktemp("broker")
    add_users(data_dir)
    with ForkedBroker(data_dir, config=CONFIG) as running:
        yield running


@pytest.fixture(params=["offline", "online"])
def where(request: pytest.FixtureRequest, broker: EmbeddedBroker, tmp_path: Path) -> list[str]:
    """The arguments that name a broker: a new data directory, or a running broker."""
    if request.param == "offline":
        return ["--data-dir", str(tmp_path / "data")]
    return ["--bootstrap-server", broker.listeners[OPEN]]


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Gives the command a standard input."""
    return lambda text: monkeypatch.setattr(sys, "stdin", io.StringIO(text))


def users_of(capsys: pytest.CaptureFixture[str], where: list[str], user: str) -> dict[str, int]:
    capsys.readouterr()
    assert main([*USERS, "list", "--json", *where]) == 0
    listed = json.loads(capsys.readouterr().out)
    return {credential["mechanism"]: credential["iterations"] for credential in listed if credential["user"] == user}


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line of a command that fails."""
    capsys.readouterr()
    try:
        code = main([*USERS, *arguments])
    except SystemExit as end:
        code = int(end.code or 0)
    error = capsys.readouterr().err
    assert (code, error.count("\n")) == (2, 1), error
    return error.removeprefix("dualwrite: ").rstrip()


def test_a_user_is_set_listed_changed_and_deleted(
    where: list[str], say: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    user = unique("user")
    say("secret\n")
    assert main([*USERS, "set", user, *where]) == 0
    assert capsys.readouterr().out == f"user {user}: set SCRAM-SHA-256, SCRAM-SHA-512\n"
    assert users_of(capsys, where, user) == dict.fromkeys(BOTH, 8192)
    say("other\n")
    assert main([*USERS, "set", user, "--mechanism", "SCRAM-SHA-512", "--iterations", "4096", *where]) == 0
    assert users_of(capsys, where, user) == {"SCRAM-SHA-256": 8192, "SCRAM-SHA-512": 4096}
    assert main([*USERS, "list", *where]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0].split() == ["USER", "MECHANISM", "ITERATIONS"]
    assert [user, "SCRAM-SHA-512", "4096"] in [line.split() for line in out.splitlines()]
    assert main([*USERS, "delete", user, "--mechanism", "SCRAM-SHA-256", *where]) == 0
    assert users_of(capsys, where, user) == {"SCRAM-SHA-512": 4096}
    assert main([*USERS, "delete", user, *where]) == 0
    assert capsys.readouterr().out == f"user {user}: deleted 1 credential\n"
    assert users_of(capsys, where, user) == {}
    error = refusal(capsys, "delete", user, *where)
    assert error == f"user '{user}' has no credential for SCRAM-SHA-256, SCRAM-SHA-512"


def test_the_documented_order_lets_the_first_user_in(
    tmp_path: Path, say: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a listener for clients that do not authenticate."""
    say(f"{PASSWORD}\n")
    assert main([*USERS, "set", ALICE, "--data-dir", str(tmp_path)]) == 0
    with ForkedBroker(tmp_path, config={"listeners": f"{SASL}://127.0.0.1:0"}) as running:
        with RawClient(running.bootstrap_servers) as client:
            assert log_in(client).error_code == ErrorCode.NONE
        error = refusal(capsys, "list", "--data-dir", str(tmp_path))
        assert error.endswith("is in use by another broker: use --bootstrap-server HOST:PORT while it runs")


def test_an_administrator_authenticates_by_a_file(
    broker: EmbeddedBroker, tmp_path: Path, say: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "client.properties"
    text = f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism=SCRAM-SHA-512\nsasl.username={ALICE}\nsasl.password="
    config.write_text(text + PASSWORD)
    where = ["--bootstrap-server", broker.listeners[SASL], "--command-config", str(config)]
    user = unique("user")
    say("secret\n")
    assert main([*USERS, "set", user, *where]) == 0
    assert users_of(capsys, where, user) == dict.fromkeys(BOTH, 8192)
    config.write_text(text + "wrong")
    error = refusal(capsys, "list", *where)
    assert error.startswith(f"{broker.listeners[SASL]}: ")
    assert "invalid credentials with SASL mechanism SCRAM-SHA-512" in error


def test_the_password_may_be_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "password"
    file.write_text(f"\ufeff{PASSWORD}\r\nsecond line\n", encoding="utf-8")  # as Windows may write it
    data_dir = str(tmp_path / "data")
    assert main([*USERS, "set", ALICE, "--password-file", str(file), "--data-dir", data_dir]) == 0
    assert PASSWORD not in capsys.readouterr().out
    with (
        ForkedBroker(data_dir, config={"listeners": f"{SASL}://127.0.0.1:0"}) as running,
        RawClient(running.bootstrap_servers) as client,
    ):
        assert log_in(client).error_code == ErrorCode.NONE


def test_the_password_is_asked_for_twice_on_a_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answers = iter(["secret", "secret", "one", "other"])
    monkeypatch.setattr(sys, "stdin", TerminalInput())
    monkeypatch.setattr("getpass.getpass", lambda prompt: next(answers))
    where = ["--data-dir", str(tmp_path)]
    assert main([*USERS, "set", ALICE, *where]) == 0
    assert refusal(capsys, "set", ALICE, *where) == "the passwords differ"


def test_no_password_at_a_terminal_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ended(prompt: str) -> str:
        raise EOFError

    monkeypatch.setattr(sys, "stdin", TerminalInput())
    monkeypatch.setattr("getpass.getpass", ended)
    said = "no password was typed: nothing was changed"
    assert refusal(capsys, "set", ALICE, "--data-dir", str(tmp_path / "data")) == said
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_a_password_that_is_not_utf_8_is_one_line(
    errors: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python reads standard input with ``surrogateescape`` in the locales C and POSIX."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"p\xff\n"), "utf-8", errors))
    said = "standard input: it is not UTF-8"
    assert refusal(capsys, "set", ALICE, "--data-dir", str(tmp_path / "data")) == said
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["list"], "one of the arguments --data-dir --bootstrap-server/--bootstrap-servers is required"),
        (["list", "--data-dir", "a", "--bootstrap-server", "b"], "not allowed with argument --data-dir"),
        (["set", "--data-dir", "a"], "the following arguments are required: USER"),
        (["set", "", "--data-dir", "a"], "user '': name one"),
        (["set", "x", "--iterations", "4095", "--data-dir", "a"], "'4095': use 4096 to 16384"),
        (["set", "x", "--iterations", "9" * 5000, "--data-dir", "a"], "use 4096 to 16384"),
        (["set", "x", "--mechanism", "PLAIN", "--data-dir", "a"], "invalid choice: 'PLAIN'"),
        (["set", "x", "--data-dir", "a"], "standard input: the password is empty"),
        (["set", "x", "--password-file", "/nowhere/x", "--data-dir", "a"], "--password-file /nowhere/x: No such file"),
        (["list", "--data-dir", ""], "data directory '': name one"),
        (["list", "--data-dir", "/nowhere/x"], "data directory /nowhere/x: there is no broker's data in it"),
        (["list", "--data-dir", "a", "-X", "client.id=x"], "--command-config and -X are for --bootstrap-server"),
        (
            [
                *("list", "--bootstrap-server", "127.0.0.1:1", "-X", "security.protocol=SSL"),
                *("-X", "ssl.ca.location=/nowhere/x"),
            ],
            "ssl.ca.location failed",
        ),
        (["frobnicate"], "invalid choice: 'frobnicate'"),
        ([], "the following arguments are required: ACTION"),
    ],
)
def test_a_mistake_gets_one_line(
    arguments: list[str], message: str, say: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    say("")
    assert message in refusal(capsys, *arguments)


def test_an_empty_list_of_users_is_printed_as_no_users(
    tmp_path: Path, say: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    say("secret\n")
    where = ["--data-dir", str(tmp_path)]
    main([*USERS, "set", "x", *where])
    main([*USERS, "delete", "x", *where])
    capsys.readouterr()
    assert main([*USERS, "list", *where]) == 0
    assert capsys.readouterr().out == "no users\n"


def test_the_broker_itself_needs_a_data_directory() -> None:
    done = subprocess.run([sys.executable, "-m", "dualwrite", "broker"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr == ("dualwrite: the following arguments are required: --data-dir; see dualwrite broker --help\n")
