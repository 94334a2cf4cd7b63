"""``dualwrite console`` as a process: what it shows of both sides, live, and to whom."""

import socket
import urllib.request
from pathlib import Path

import pytest

from dualwrite.console.security import MOST_FAILURES
from dualwrite.testing.kafka import KafkaBroker
from tests.support.console.asgi import basic
from tests.support.console.served import SECONDS, console_of
from tests.support.forked import ForkedKafkaBroker
from tests.support.operations.places import OperationsSite, command

PASSWORD = "correct horse battery"


def test_the_page_is_green_turns_red_when_a_process_dies_and_green_when_its_work_is_ended(site: OperationsSite) -> None:
    with console_of(site) as console:
        first = console.page()
        assert '<p class="sentence green" role="status">0 in doubt, no open transaction</p>' in first
        assert '<p class="note">Nothing.</p>' in first
        events = console.events()
        assert [next(events)[0] for _ in range(3)] == ["sentence", "needs", "slots"]
        site.leave("one")
        assert "1 in doubt" in console.until("sentence", lambda text: "sentence red" in text)
        needs = console.until("needs", lambda text: "<dd>commit</dd>" in text)
        for evidence in (site.slot(), "decided on ", "Ongoing, ", "its owner is gone"):
            assert evidence in needs
        slots = console.until("slots", lambda text: "Ongoing" in text)
        assert f"<td>{site.slot()}</td>" in slots
        assert site.run("transactions", "resolve", site.slot(), "--yes").code == 0
        assert "0 in doubt" in console.until("sentence", lambda text: "sentence green" in text)
        assert console.interrupt() == (130, "")


@pytest.mark.slow
def test_a_command_line_of_the_page_does_what_the_card_says(site: OperationsSite) -> None:
    site.leave("one")
    with console_of(site) as console:
        page = console.page()
    words = page.partition("<code>dualwrite transactions resolve ")[2].partition("</code>")[0].split()
    done = command("transactions", "resolve", *words)
    assert (done.code, done.out) == (0, f"{site.slot()}: committed\n")


def test_every_answer_has_the_security_headers(site: OperationsSite) -> None:
    with console_of(site) as console:
        paths = ("", "static/console.css", "static/htmx-2.0.11.min.js", "nothing", "static/../app.py")
        answers = {path: console.get(path) for path in paths}
        assert {path: answer.status for path, answer in answers.items()} == dict.fromkeys(
            paths[:3], 200
        ) | dict.fromkeys(paths[3:], 404)
        for answer in answers.values():
            headers = {name.lower(): value for name, value in answer.headers.items()}
            assert headers["content-security-policy"].startswith("default-src 'self';")
            assert (headers["x-content-type-options"], headers["cache-control"]) == ("nosniff", "no-store")
            assert headers["referrer-policy"] == "same-origin"
            assert "server" not in headers
        assert console.post("", {"a": "b"}).status == 405
        rebound = console.get("", {"Host": "evil.example"})
        assert (rebound.status, "sentence" in rebound.body) == (421, False)


@pytest.mark.slow
def test_no_answer_redirects_to_another_host(site: OperationsSite) -> None:
    with console_of(site) as console:
        for path in ("/evil.example", "/evil.example/..", "static", "events/", "%2f%2fevil.example", "\\evil.example"):
            request = urllib.request.Request(console.url + path)
            answer = urllib.request.build_opener(_NoRedirect).open(request, timeout=SECONDS)
            assert answer.status == 200 or "evil" not in (answer.headers.get("location") or "")
            answer.close()


class _NoRedirect(urllib.request.HTTPErrorProcessor):
    """Gives every answer as it is."""

    def http_response(self, request: urllib.request.Request, response):  # type: ignore[no-untyped-def]
        return response


def test_with_a_password_nothing_is_shown_without_it(site: OperationsSite, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_bytes(b"\xef\xbb\xbf" + PASSWORD.encode() + b"\r\n")  # as Windows may write it
    with console_of(site, "--password-file", str(file)) as console:
        for path in ("", "events", "static/console.css"):
            refused = console.get(path)
            assert (refused.status, site.application in refused.body) == (401, False)
        shown = console.get("", {"Authorization": basic("Ann", PASSWORD)})
        assert (shown.status, site.application in shown.body) == (200, True)


def test_a_client_cannot_guess_passwords_under_addresses_of_its_choice(site: OperationsSite) -> None:
    with console_of(site, environment={"DUALWRITE_CONSOLE_PASSWORD": PASSWORD}) as console:
        guesses = [
            console.get("", {"Authorization": basic("x", "guess"), "X-Forwarded-For": f"10.0.0.{number}"}).status
            for number in range(MOST_FAILURES + 1)
        ]
        assert guesses == [401] * MOST_FAILURES + [429]


@pytest.mark.slow
def test_the_password_of_the_environment_allows_another_address(site: OperationsSite) -> None:
    environment = {"DUALWRITE_CONSOLE_PASSWORD": PASSWORD}
    with console_of(site, "--host", "0.0.0.0", environment=environment) as console:
        port = console.url.rsplit(":", 1)[1]
        console.url = f"http://127.0.0.1:{port}"
        assert console.get().status == 401
        assert console.get("", {"Authorization": basic("Ann", PASSWORD)}).status == 200


def test_an_open_page_does_not_keep_the_console_from_ending(site: OperationsSite) -> None:
    with console_of(site) as console:
        events = console.events()
        assert next(events)[0] == "sentence"
        assert console.interrupt() == (130, "")
        assert list(events) is not None


def test_a_reader_that_reads_nothing_keeps_no_other_waiting(site: OperationsSite) -> None:
    with console_of(site) as console:
        host, port = console.url[len("http://") :].rstrip("/").split(":")
        with socket.create_connection((host, int(port))) as slow:
            slow.sendall(f"GET /events HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            site.leave("one")
            assert "1 in doubt" in console.until("sentence", lambda text: "sentence red" in text)


def rename_table(site: OperationsSite, old: str, new: str) -> None:
    with site.engine.begin() as connection:
        connection.exec_driver_sql(f"ALTER TABLE {old} RENAME TO {new}")


@pytest.mark.slow
def test_while_kafka_is_away_the_database_is_shown_and_the_other_way_round(tmp_path: Path) -> None:
    with ForkedKafkaBroker(tmp_path / "broker") as own:
        site = OperationsSite(f"sqlite:///{tmp_path / 'app.db'}", own)
        site.leave("one")
        with console_of(site) as console:
            assert "1 in doubt" in console.until("sentence", lambda text: "sentence red" in text)
            rename_table(site, "kafka_transaction_state", "away")
            text = console.until("sentence", lambda text: "; The database does not answer" in text)
            assert "sentence red" in text
            assert "Ongoing" in console.until("slots", lambda text: "not known" in text)
            rename_table(site, "away", "kafka_transaction_state")
            assert "not answer" not in console.until("sentence", lambda text: "1 in doubt" in text)
            own.stop()
            text = console.until("sentence", lambda text: "Kafka does not answer" in text)
            assert "sentence red" in text
            slots = console.until("slots", lambda text: "not known" in text)
            assert f"<td>{site.slot()}</td>" in slots
        site.engine.dispose()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--host", "0.0.0.0"),
            "--host 0.0.0.0 is reached from other machines: set a password with --password-file or",
        ),
        (("--host", "::"), "--host :: is reached from other machines"),
        (("--host", "192.0.2.1", "--no-password"), "cannot listen at 192.0.2.1:8939: "),
        (("--host", "no.such.host.invalid", "--no-password"), "--host no.such.host.invalid: "),
        (("--host", "my..host", "--no-password"), "--host my..host: this is no host name"),
        (("--password-file", "/no/such/file"), "--password-file /no/such/file: No such file or directory"),
        (("--port", "65536"), "--port 65536: use 0 to 65535"),
        (("--interval", "0"), "--interval 0: use a number of seconds above 0"),
        (("--long", "nan"), "--long nan: use a number of seconds above 0"),
        (("--application", ""), "--application is empty"),
        (("-X", "nosuch=1"), "-X: nosuch: there is no such setting"),
    ],
)
def test_a_mistake_is_told_in_a_line(site: OperationsSite, words: tuple[str, ...], message: str) -> None:
    done = site.run("console", *words)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"dualwrite: {message}")
    assert done.err.count("\n") == 1


def test_a_short_password_and_a_port_in_use_are_told_in_a_line(
    site: OperationsSite, broker: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = broker.bootstrap_servers.rpartition(":")[2]
    in_use = site.run("console", "--port", port)
    assert in_use.code == 2
    assert in_use.err == (
        f"dualwrite: cannot listen at 127.0.0.1:{port}: Address already in use; stop the program that has this port, "
        "or choose another one with --port (0: a free one)\n"
    )
    monkeypatch.setenv("DUALWRITE_CONSOLE_PASSWORD", "short")
    short = site.run("console")
    assert (short.code, short.err) == (2, "dualwrite: the console's password is too short: use 12 characters or more\n")
