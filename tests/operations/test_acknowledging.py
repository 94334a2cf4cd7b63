"""Heuristic outcomes on the command line: listed until they are acknowledged."""

import re

import pytest
from sqlalchemy.exc import OperationalError

from dualwrite.coordinator.sql.outcome_store import outcomes
from dualwrite.operations import replays
from tests.support.operations.places import OperationsSite, command

pytestmark = pytest.mark.slow_cases("mariadb", "postgresql")


def terminated(site: OperationsSite, value: str = "one") -> None:
    site.leave(value)
    assert site.run("transactions", "terminate", site.slot(), "--yes").code == 1


def test_an_outcome_is_listed_until_it_is_acknowledged(any_place: OperationsSite) -> None:
    terminated(any_place)
    listed = any_place.run("transactions", "list")
    last = listed.out.splitlines()[-1]
    (state,) = [row[1] for row in any_place.outcomes()]
    assert re.match(rf"heuristic abort 1, found \d+ \w+ ago: {any_place.slot()}, {state}", last), last
    described = any_place.run("transactions", "describe", any_place.slot()).out
    assert "\non record          heuristic abort 1, found " in described, "recovery finds nothing there any more"
    assert [
        each["id"] for each in any_place.run("transactions", "describe", any_place.slot(), "--json").json()["outcomes"]
    ]
    result = command("transactions", "acknowledge", "1", "--by", "ada", "--db", any_place.url)
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith(f"heuristic abort 1 of {any_place.slot()}: acknowledged by ada, 20")
    for words in (("list",), ("describe", any_place.slot())):
        assert "heuristic" not in any_place.run("transactions", *words).out
    again = command("transactions", "acknowledge", "1", "--by", "bob", "--db", any_place.url)
    assert again.out == result.out, "the first acknowledgement counts"
    assert len(any_place.outcomes()) == 1, "The outcome stays on record"


def test_an_outcome_that_the_application_replays_is_listed_as_such(any_place: OperationsSite) -> None:
    """An operator who produces its records by hand, and acknowledges it later, may double them."""
    any_place.leave("one", two_phase="resume", replay=True)
    assert any_place.run("transactions", "terminate", any_place.slot(), "--yes").code == 1
    listed = any_place.run("transactions", "list")
    assert "the records of 1 outcome (1) are kept: an application with replay=True produces" in listed.out
    assert any_place.run("transactions", "list", "--json").json()["awaiting_replay"] == [1]
    any_place.dual_write(two_phase="resume", replay=True).recover()
    assert any_place.visible() == ["one"]
    assert any_place.run("transactions", "list", "--json").json()["awaiting_replay"] == []
    assert "are kept" not in any_place.run("transactions", "list").out


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_login_without_the_right_to_see_what_is_kept_gets_no_advice_and_a_lost_connection_is_an_error(
    site: OperationsSite, monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    terminated(site)

    def refusing() -> None:
        raise OperationalError("SELECT", None, Exception("no answer"), connection_invalidated=is_lost)

    monkeypatch.setattr(replays, "lost_units", refusing)
    found = outcomes(site.engine)
    if is_lost:
        with pytest.raises(OperationalError, match="no answer"):
            replays.awaiting_replay(site.engine, found)
    else:
        assert replays.awaiting_replay(site.engine, found) == []


def test_a_range_is_acknowledged_at_once(site: OperationsSite) -> None:
    for value in ("one", "two", "three"):
        terminated(site, value)
        site.run("recover", "--application", site.application)
    command("transactions", "acknowledge", "2", "--by", "ada", "--db", site.url)
    result = command("transactions", "acknowledge", "1-9", "--by", "bob", "--db", site.url)
    assert result.code == 0
    assert [int(line.split()[2]) for line in result.out.splitlines()] == [1, 3]
    assert "not acknowledged" not in site.run("transactions", "list").out


def test_json_has_the_outcomes(site: OperationsSite) -> None:
    terminated(site)
    mine, site.application = site.application, f"{site.application}-too"
    site.write("another's")
    for application, count in ((mine, 1), (site.application, 0)):
        found = site.run("transactions", "list", "--application", application, "--json").json()["outcomes"]
        assert len(found) == count
    site.application = mine
    (outcome,) = site.run("transactions", "list", "--json").json()["outcomes"]
    assert outcome["transactional_id"] == site.slot()
    assert outcome["outcome"] == "heuristic_abort"
    assert outcome["acknowledged_by"] is None


def test_json_has_what_was_acknowledged_also_before_an_error(site: OperationsSite) -> None:
    terminated(site)
    words = ("--by", "ada", "--json", "--db", site.url)
    result = command("transactions", "acknowledge", "1", "7", *words)
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert "there is no heuristic outcome 7" in result.err
    (outcome,) = result.json()["outcomes"]
    assert (outcome["id"], outcome["outcome"], outcome["acknowledged_by"]) == (1, "heuristic_abort", "ada")
    assert outcome["acknowledged_at"].startswith("20")
    assert command("transactions", "acknowledge", "1", *words).json() == result.json()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["1-99999999999999999999", "--by", "ada"], "no outcome from 1 to 99999999999999999999 waits to be"),
        (["99999999999999999999", "--by", "ada"], "there is no heuristic outcome 99999999999999999999"),
        (["1", "--by", "ada"], "there is no heuristic outcome 1"),
        (["one", "--by", "ada"], "argument N: 'one': give a number, or a range such as 11-43"),
        (["2-1", "--by", "ada"], "no outcome from 2 to 1 waits to be acknowledged"),
        (["1-9", "--by", "ada"], "no outcome from 1 to 9 waits to be acknowledged"),
        (["1"], "the following arguments are required: --by"),
        (["1", "--by", " "], "acknowledged by ' ': say who"),
    ],
)
def test_an_error_is_one_line(site: OperationsSite, words: list[str], line: str) -> None:
    result = command("transactions", "acknowledge", *words, "--db", site.url)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith(f"dualwrite: {line}")
    assert result.err.count("\n") == 1


def test_recover_and_resolve_end_badly_where_they_find_one(site: OperationsSite) -> None:
    for words in (["recover"], ["transactions", "resolve", "--yes"]):
        site.leave("one" if words == ["recover"] else "two")
        site.ask(
            lambda control: control.init_producer_id(
                site.slot(), transaction_timeout_ms=60_000, two_phase_commit=False, keep_prepared_txn=False
            )
        )
        result = site.run(*words, "--application", site.application)
        assert (result.code, result.err) == (1, "")
        assert result.out.startswith(f"{site.slot()}: heuristic abort\n")
    assert site.run("doctor").out.count("failure  outcomes: 2 heuristic outcomes") == 1
