"""What stands before the pages: headers, the Host check against DNS rebinding, and the password."""

from typing import Any

import pytest

from dualwrite.console.security import (
    HEADERS,
    LOCK_SECONDS,
    MOST_ADDRESSES,
    MOST_FAILURES,
    HostCheck,
    PasswordCheck,
    SecurityHeaders,
    host_name,
    operator_name,
    refuse,
)
from dualwrite.errors import ConfigurationError
from tests.support.console.asgi import basic, requested

PASSWORD = "correct horse battery"


class ScriptedSeconds:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


async def pages(scope: Any, receive: Any, send: Any) -> None:
    """Answers with the operator's name."""
    await refuse(send, 200, f"page for {operator_name.get()}", [(b"Cache-Control", b"public"), (b"x-own", b"1")])


@pytest.fixture
def clock() -> ScriptedSeconds:
    return ScriptedSeconds()


@pytest.fixture
def guarded(clock: ScriptedSeconds) -> PasswordCheck:
    return PasswordCheck(pages, PASSWORD, clock)


def test_every_answer_has_the_headers_once_and_keeps_its_own() -> None:
    answer = requested(SecurityHeaders(pages))
    assert answer.headers.items() >= {(name.decode(), value.decode()) for name, value in HEADERS}
    assert (answer.headers["x-own"], answer.headers["cache-control"]) == ("1", "no-store")
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'self'; ")
    assert "unsafe" not in policy
    assert "frame-ancestors 'none'" in policy


def test_no_other_site_can_frame_the_pages_read_them_or_keep_them() -> None:
    headers = requested(SecurityHeaders(pages)).headers
    assert set(headers["content-security-policy"].split("; ")) == {
        "default-src 'self'", "base-uri 'none'", "form-action 'self'", "frame-ancestors 'none'"
    }  # fmt: skip
    wanted = {
        "x-content-type-options": "nosniff",
        "x-frame-options": "DENY",
        "referrer-policy": "same-origin",
        "cross-origin-opener-policy": "same-origin",
        "cross-origin-resource-policy": "same-origin",
        "cache-control": "no-store",
    }
    assert wanted.items() <= headers.items()


def test_a_refusal_has_the_headers_too() -> None:
    answer = requested(SecurityHeaders(HostCheck(pages)), headers={"host": "evil.example"})
    assert answer.status == 421
    assert answer.headers["content-security-policy"].startswith("default-src 'self'")


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8939", "127.0.0.1", "127.0.0.1:1", "[::1]:8939", "10.1.2.3:80", "ops.example:443"]
)
def test_the_console_s_own_names_and_addresses_are_accepted(host: str) -> None:
    assert requested(HostCheck(pages, ["Ops.Example"]), headers={"host": host}).status == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8939",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "",
        "[::1",
        "a:b:c",
        "[::1]x",
    ],
)
def test_a_name_that_may_have_been_rebound_is_refused(host: str) -> None:
    answer = requested(HostCheck(pages, ["ops.example"]), headers={"host": host})
    assert (answer.status, "page for" in answer.body) == (421, False)


def test_two_host_headers_are_refused() -> None:
    assert requested(HostCheck(pages), extra=((b"host", b"localhost"),)).status == 421


def test_any_name_is_accepted_if_the_application_checks_names_itself() -> None:
    assert requested(HostCheck(pages, ["*"]), headers={"host": "a.example"}).status == 200


@pytest.mark.parametrize(
    ("host", "name"), [("a.b.", "a.b"), ("A:1", "a"), ("[FE80::1]:2", "fe80::1"), (":80", ""), ("a:1:2", "")]
)
def test_a_host_name_is_read_without_its_port(host: str, name: str) -> None:
    assert host_name(host) == name


def test_the_right_password_passes_and_names_the_operator(guarded: PasswordCheck) -> None:
    answer = requested(guarded, headers={"authorization": basic("Ann", PASSWORD)})
    assert (answer.status, answer.body) == (200, "page for Ann\n")


@pytest.mark.parametrize(
    "header",
    [
        None,
        "Basic",
        "Basic !!!",
        "Basic " + "/w==",
        "Basic ü",
        "Bearer " + PASSWORD,
        basic("", ""),
        basic("Ann", PASSWORD[:-1]),
        basic("Ann", PASSWORD + " "),
        basic(PASSWORD, ""),
        "Basic " + PASSWORD,
    ],
)
def test_without_the_password_there_is_no_page(guarded: PasswordCheck, header: str | None) -> None:
    answer = requested(guarded, headers={} if header is None else {"authorization": header})
    assert (answer.status, "page for" in answer.body) == (401, False)
    assert answer.headers["www-authenticate"].startswith("Basic realm=")


def test_two_authorizations_are_none(guarded: PasswordCheck) -> None:
    value = basic("Ann", PASSWORD)
    answer = requested(guarded, headers={"authorization": value}, extra=((b"authorization", value.encode()),))
    assert answer.status == 401


def test_wrong_passwords_in_a_loop_lock_their_address_out_for_a_time(
    guarded: PasswordCheck, clock: ScriptedSeconds
) -> None:
    wrong, right = {"authorization": basic("x", "guess")}, {"authorization": basic("x", PASSWORD)}
    assert [requested(guarded, headers=wrong).status for _ in range(MOST_FAILURES + 2)] == [401] * MOST_FAILURES + [
        429
    ] * 2
    locked = requested(guarded, headers=right)
    assert (locked.status, locked.headers["retry-after"]) == (429, str(int(LOCK_SECONDS) + 1))
    assert requested(guarded, headers=right, client=("10.0.0.1", 1)).status == 200
    clock.now += LOCK_SECONDS
    assert requested(guarded, headers=right).status == 200
    assert requested(guarded, headers=wrong).status == 401


def test_failures_are_counted_anew_once_the_time_is_over(guarded: PasswordCheck, clock: ScriptedSeconds) -> None:
    wrong = {"authorization": basic("x", "guess")}
    for _ in range(2):
        assert [requested(guarded, headers=wrong).status for _ in range(MOST_FAILURES)] == [401] * MOST_FAILURES
        assert requested(guarded, headers=wrong).status == 429
        clock.now += LOCK_SECONDS


def test_a_success_forgets_the_failures_before(guarded: PasswordCheck) -> None:
    wrong, right = {"authorization": basic("x", "guess")}, {"authorization": basic("x", PASSWORD)}
    for _ in range(3):
        assert [requested(guarded, headers=wrong).status for _ in range(MOST_FAILURES - 1)] == [401] * (
            MOST_FAILURES - 1
        )
        assert requested(guarded, headers=right).status == 200


def test_a_missing_password_is_no_attempt(guarded: PasswordCheck) -> None:
    assert {requested(guarded).status for _ in range(MOST_FAILURES * 3)} == {401}


def test_addresses_of_one_ipv6_network_are_one(guarded: PasswordCheck) -> None:
    wrong = {"authorization": basic("x", "guess")}
    for number in range(MOST_FAILURES):
        requested(guarded, headers=wrong, client=(f"2001:db8::{number}", 1))
    assert requested(guarded, headers=wrong, client=("2001:db8::ffff:1", 1)).status == 429
    assert requested(guarded, headers=wrong, client=("2001:db8:0:1::1", 1)).status == 401
    assert requested(guarded, headers=wrong, client=("fe80::1%eth0", 1)).status == 401


def test_addresses_of_ipv4_are_told_apart_on_a_socket_of_ipv6(guarded: PasswordCheck) -> None:
    wrong = {"authorization": basic("x", "guess")}
    for _ in range(MOST_FAILURES):
        requested(guarded, headers=wrong, client=("::ffff:10.0.0.1", 1))
    assert requested(guarded, headers=wrong, client=("::ffff:10.0.0.1", 1)).status == 429
    assert requested(guarded, headers=wrong, client=("::ffff:10.0.0.2", 1)).status == 401


def test_what_is_remembered_of_addresses_is_bounded(guarded: PasswordCheck) -> None:
    wrong = {"authorization": basic("x", "guess")}
    for number in range(MOST_ADDRESSES + 50):
        requested(guarded, headers=wrong, client=(f"10.0.{number // 256}.{number % 256}", 1))
    assert guarded.remembered == MOST_ADDRESSES


def test_a_client_without_an_address_is_asked_for_the_password_too(guarded: PasswordCheck) -> None:
    assert requested(guarded, client=None).status == 401
    assert requested(guarded, client=("unix", 0), headers={"authorization": basic("x", PASSWORD)}).status == 200


def test_a_short_password_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigurationError, match="use 12 characters or more"):
        PasswordCheck(pages, "eleven char")


def test_the_reported_password_is_compared_by_digests_of_one_length(
    guarded: PasswordCheck, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[tuple[int, int]] = []

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return one == other

    monkeypatch.setattr("dualwrite.console.security.hmac.compare_digest", compare)
    for guess in ("a", PASSWORD, "b" * 10_000):
        requested(guarded, headers={"authorization": basic("x", guess)})
    assert compared == [(32, 32)] * 3
