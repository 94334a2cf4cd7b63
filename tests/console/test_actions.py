"""The console's actions: planned first, carried out once as the command line would, and not there unless asked for."""

import html
import logging
import re
import socket
import time
from collections.abc import Iterator

import pytest
from sqlalchemy import delete

from dualwrite.client.admin.cluster_client import DEFAULT_TIMEOUT
from dualwrite.console import acting, looks
from dualwrite.console.acting import ActionDesk, ActionPlan
from dualwrite.console.commands import MOST_TARGETS, Commands
from dualwrite.console.looks import Place
from dualwrite.coordinator.sql.outcome_store import outcomes
from dualwrite.coordinator.sql.tables import kafka_transaction_outcome as outcome_table
from dualwrite.errors import InputError, InvalidTransactionStateError, KafkaUnavailableError
from dualwrite.operations.resolving import Resolution
from dualwrite.operations.terminating import terminate
from tests.support.console.asgi import basic
from tests.support.console.served import ConsoleProcess, confirm, console_of, form_of, hidden_fields
from tests.support.operations.places import OperationsSite, command

PASSWORD = "correct horse battery"


@pytest.fixture
def desk(site: OperationsSite) -> ActionDesk:
    kafka = site.broker.client_config
    return ActionDesk(Place(site.engine, kafka, site.application), Commands(site.engine, kafka))


@pytest.fixture
def console(site: OperationsSite) -> Iterator[ConsoleProcess]:
    with console_of(site, "--actions") as running:
        yield running


def test_resolving_ends_what_a_dead_process_left_as_the_database_decided(
    site: OperationsSite, console: ConsoleProcess
) -> None:
    site.leave("one")
    before = site.rows(), site.described()
    planned = console.post("plan", form_of(console.page(), "resolve"))
    assert planned.status == 200
    assert f"{site.slot()}: would commit " in planned.body
    assert "dualwrite transactions resolve " in planned.body
    assert (site.rows(), site.described()) == before
    done = confirm(console, planned, "Ann")
    assert (done.status, f"<li>{site.slot()}: committed</li>" in done.body) == (200, True)
    assert site.visible() == site.stored() == ["one"]
    again = confirm(console, planned, "Ann")
    assert (again.status, "carried out already" in again.body) == (400, True)
    assert "sentence green" in console.until("sentence", lambda text: "green" in text)


def test_terminating_warns_of_the_decision_and_the_outcome_is_acknowledged_by_name(
    site: OperationsSite, console: ConsoleProcess
) -> None:
    site.leave("one")
    planned = console.post("plan", form_of(console.page(), "terminate"))
    assert "would ABORT" in planned.body
    assert "THE DATABASE HAS COMMITTED IT" in planned.body
    assert site.outcomes() == []
    done = confirm(console, planned, "Ann")
    assert f"{site.slot()}: aborted" in done.body
    assert site.visible() == []
    assert [kind for _, _, kind in site.outcomes()] == ["heuristic abort"]
    assert outcomes(site.engine)[0].detail.startswith("Ann terminated it in Kafka: ")
    assert "1 heuristic abort" in console.until("sentence", lambda text: "heuristic" in text)
    planned = console.post("plan", form_of(console.page(), "acknowledge"))
    assert "corrects nothing itself" in planned.body
    done = confirm(console, planned, "Ann O'Hara")
    assert "acknowledged by Ann O&#39;Hara" in done.body
    (recorded,) = outcomes(site.engine, acknowledged=True)
    assert recorded.acknowledged_by == "Ann O'Hara"
    assert "sentence green" in console.until("sentence", lambda text: "green" in text)


@pytest.mark.slow
def test_the_command_that_is_shown_does_the_same(site: OperationsSite, console: ConsoleProcess) -> None:
    site.leave("one", step="COMMIT_DATABASE")
    planned = console.post("plan", form_of(console.page(), "terminate"))
    line = html.unescape(re.findall(r"<code>dualwrite (.*?)</code>", planned.body)[0])
    done = command(*line.split())
    assert (done.code, done.out.startswith(f"{site.slot()}: aborted ")) == (0, True)


def test_a_target_that_is_named_twice_is_one(site: OperationsSite, desk: ActionDesk) -> None:
    site.leave("one")
    planned = desk.plan("resolve", [site.slot(), site.slot()])
    assert (planned.targets, len(planned.lines)) == ((site.slot(),), 1)


def test_nothing_is_resolved_under_what_is_no_name(site: OperationsSite, desk: ActionDesk) -> None:
    site.leave("one")
    planned = desk.plan("resolve", [site.slot()])
    before = site.rows(), site.described()
    for by in ("", "a\nb"):
        with pytest.raises(InputError, match="resolve by"):
            desk.run(planned, by)
    assert (site.rows(), site.described()) == before


def test_what_was_acknowledged_before_an_error_is_said(site: OperationsSite, desk: ActionDesk) -> None:
    for value in ("one", "two"):
        site.leave(value)
        terminate(site.engine, site.broker.client_config, site.slot())
    first, second = (outcome.id for outcome in outcomes(site.engine))
    planned = desk.plan("acknowledge", [str(first), str(second)])
    with site.engine.begin() as connection:
        connection.execute(delete(outcome_table).where(outcome_table.c.id == second))
    result = desk.run(planned, "Ann")
    assert result.is_bad
    done, missed = result.lines
    assert "acknowledged by Ann" in done
    assert missed.startswith(f"{second}: not acknowledged: ")


def test_a_plan_warns_of_the_difference_that_recovery_would_put_on_record(
    site: OperationsSite, desk: ActionDesk
) -> None:
    site.leave("one")
    assert desk.plan("resolve", [site.slot()]).warning == ""
    site.ask(
        lambda control: control.init_producer_id(
            site.slot(), transaction_timeout_ms=60_000, two_phase_commit=False, keep_prepared_txn=False
        )
    )
    assert "find the two sides different" in desk.plan("resolve", [site.slot()]).warning


def test_what_could_not_be_resolved_is_said(
    site: OperationsSite, desk: ActionDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may take a slot between the plan and its turn."""
    site.leave("one")
    planned = desk.plan("resolve", [site.slot()])
    assert planned.is_possible
    done = Resolution(missed=[site.slot()], errors=[KafkaUnavailableError("no answer,\n  twice")])
    monkeypatch.setattr(acting, "resolve", lambda *_, **__: done)
    result = desk.run(planned, "Ann")
    assert result.is_bad
    assert result.lines == (f"{site.slot()}: not resolved", "no answer, twice")


def test_a_termination_against_the_decision_is_no_good_end(site: OperationsSite, desk: ActionDesk) -> None:
    site.leave("one")
    assert desk.run(desk.plan("terminate", [site.slot()]), "Ann").is_bad
    site.leave("two", step="COMMIT_DATABASE")
    assert not desk.run(desk.plan("terminate", [site.slot()]), "Ann").is_bad


def test_the_name_of_a_target_writes_no_line_into_the_log(
    site: OperationsSite, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any client of Kafka chooses its transactional id."""
    name = "a\nresolve by Ann: b"
    monkeypatch.setattr(acting, "plan", lambda *_, **__: [])
    monkeypatch.setattr(acting, "resolve", lambda *_, **__: Resolution(missed=[name]))
    kafka = site.broker.client_config
    desk = ActionDesk(Place(site.engine, kafka), Commands(site.engine, kafka))
    with caplog.at_level(logging.INFO, "dualwrite.console"):
        desk.run(ActionPlan("resolve", (name,), (), "", ""), "Bob")
    shown = "a\\nresolve by Ann: b"
    assert [record.getMessage() for record in caplog.records if record.name == "dualwrite.console"] == [
        f"resolve by Bob: {shown}",
        f"resolve by Bob: {shown}: not resolved",
    ]


def test_without_actions_there_is_no_form_and_no_endpoint(site: OperationsSite) -> None:
    site.leave("one")
    with console_of(site) as console:
        page = console.page()
        assert "1 in doubt" in page
        assert "<form" not in page
        assert "csrf_token" not in page
        for path in ("plan", "run"):
            assert console.post(path, {"verb": "resolve", "target": site.slot()}).status == 404


def test_a_forged_form_does_nothing(site: OperationsSite, console: ConsoleProcess) -> None:
    site.leave("one")
    form = form_of(console.page(), "terminate")
    assert console.post("plan", {**form, "csrf_token": "guess"}).status == 403
    assert console.post("plan", form, {"Origin": "http://evil.example"}).status == 403
    assert console.post("plan", form, {"Sec-Fetch-Site": "cross-site"}).status == 403
    assert console.post("plan", form, {"Host": "evil.example"}).status == 421
    assert console.get("plan").status == 405
    (confirmation,) = hidden_fields(console.post("plan", form).body)
    assert console.post("run", {**confirmation, "by": "Ann", "csrf_token": "guess"}).status == 403
    for by in ("", " ", "a\nb", "x" * 256):
        assert console.post("run", {**confirmation, "by": by}).status == 400
    described = site.described()
    assert described is not None
    assert described.state == "Ongoing"
    assert console.post("run", {**confirmation, "by": "Ann"}).status == 200


def test_what_cannot_be_done_any_more_is_refused_on_a_page(site: OperationsSite, console: ConsoleProcess) -> None:
    site.leave("one")
    form = form_of(console.page(), "terminate")
    assert site.run("transactions", "resolve", site.slot(), "--yes").code == 0
    refused = console.post("plan", form)
    assert (refused.status, "there is nothing to terminate" in refused.body) == (409, True)


@pytest.mark.slow
def test_the_name_of_the_login_is_suggested(site: OperationsSite) -> None:
    site.leave("one")
    environment = {"DUALWRITE_CONSOLE_PASSWORD": PASSWORD}
    with console_of(site, "--actions", environment=environment) as console:
        login = {"Authorization": basic('Ann "A"', PASSWORD)}
        form = form_of(console.page(login), "resolve")
        assert console.post("plan", form).status == 401
        assert 'value="Ann &#34;A&#34;"' in console.post("plan", form, login).body


def test_the_log_names_who_has_done_what(
    site: OperationsSite, desk: ActionDesk, caplog: pytest.LogCaptureFixture
) -> None:
    site.leave("one")
    with caplog.at_level(logging.INFO, "dualwrite.console"):
        assert desk.run(desk.plan("resolve", [site.slot()]), "Ann").lines == (f"{site.slot()}: committed",)
    assert [record.message for record in caplog.records if record.name == "dualwrite.console"] == [
        f"resolve by Ann: {site.slot()}",
        f"resolve by Ann: {site.slot()}: committed",
    ]


def test_the_command_prints_who_has_done_what(site: OperationsSite, console: ConsoleProcess) -> None:
    site.leave("one")
    confirm(console, console.post("plan", form_of(console.page(), "resolve")), "Ann")
    assert console.process.stdout is not None
    lines = [console.process.stdout.readline() for _ in range(2)]
    assert lines[0].endswith(f" resolve by Ann: {site.slot()}\n")
    assert lines[1].endswith(f" resolve by Ann: {site.slot()}: committed\n")


def test_a_termination_of_another_transaction_than_the_one_shown_is_refused(
    site: OperationsSite, desk: ActionDesk
) -> None:
    site.leave("one", step="COMMIT_DATABASE")
    planned = desk.plan("terminate", [site.slot()])
    assert planned.contradicts_decision is False
    desk.run(desk.plan("resolve", [site.slot()]), "Ann")
    site.leave("two", step="COMMIT_DATABASE")
    before = site.described()
    with pytest.raises(InvalidTransactionStateError, match="not the transaction that was shown"):
        desk.run(planned, "Ann")
    assert site.described() == before


def test_a_termination_that_the_database_has_decided_against_meanwhile_is_refused(
    site: OperationsSite, desk: ActionDesk
) -> None:
    """The plan said that recovery would abort the transaction, too."""
    site.leave("one", step="COMMIT_DATABASE")
    planned = desk.plan("terminate", [site.slot()])
    described = site.described()
    assert described is not None
    site.change_row(prepared_txn_state=str(described.producer))
    with pytest.raises(InvalidTransactionStateError, match="the database has decided on it meanwhile"):
        desk.run(planned, "Ann")
    assert (site.described(), site.outcomes()) == (described, [])


def test_a_slot_whose_owner_may_be_alive_is_left_alone(site: OperationsSite, desk: ActionDesk) -> None:
    site.leave("one", silent=False)
    before = site.described()
    with pytest.raises(InvalidTransactionStateError, match="may be alive"):
        desk.plan("terminate", [site.slot()])
    site.change_row(owner="elsewhere:1 - - x")
    planned = desk.plan("resolve", [site.slot()])
    assert (planned.is_possible, "may be alive" in planned.lines[0]) == (False, True)
    result = desk.run(planned, "Ann")
    assert (result.is_bad, "not touched" in result.lines[0]) == (True, True)
    assert site.described() == before


@pytest.mark.parametrize(
    ("verb", "targets", "message"),
    [
        ("resolve", [], "0 targets of resolve: choose 1 to 500"),
        ("resolve", [f"a-{number}" for number in range(MOST_TARGETS + 1)], "501 targets"),
        ("terminate", ["{slot}", "{slot}1"], "choose one transactional id"),
        ("drop", ["{slot}"], "there is no action 'drop'"),
        ("acknowledge", ["1"], "no outcome 1 waits to be acknowledged"),
        ("acknowledge", ["1; DROP TABLE x"], "no outcome 1; DROP TABLE x waits"),
        ("resolve", ["other-0"], "other-0: this console is for the application"),
        ("terminate", ["other-0"], "other-0: this console is for the application"),
        ("resolve", ["{slot}"], "no such transactional id"),
    ],
)
def test_what_is_not_there_to_be_done_is_refused(
    site: OperationsSite, desk: ActionDesk, verb: str, targets: list[str], message: str
) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        desk.plan(verb, [target.replace("{slot}", site.slot()) for target in targets])


def test_an_outcome_of_another_application_is_not_acknowledged(site: OperationsSite, desk: ActionDesk) -> None:
    site.leave("one")
    desk.run(desk.plan("terminate", [site.slot()]), "Ann")
    number = str(outcomes(site.engine)[0].id)
    others = Place(site.engine, site.broker.client_config, "another")
    with pytest.raises(InputError, match=f"no outcome {number} waits"):
        ActionDesk(others, Commands(site.engine, others.kafka)).plan("acknowledge", [number])


@pytest.mark.parametrize("verb", ["resolve", "terminate"])
def test_a_silent_cluster_is_named_before_the_operator_has_gone(
    site: OperationsSite, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.setattr(looks, "ANSWER_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        kafka = {"bootstrap.servers": f"127.0.0.1:{silent.getsockname()[1]}"}
        desk = ActionDesk(Place(site.engine, kafka, site.application), Commands(site.engine, kafka))
        began = time.monotonic()
        with pytest.raises(KafkaUnavailableError):
            desk.plan(verb, [site.slot()])
    assert time.monotonic() - began < DEFAULT_TIMEOUT / 2


def test_an_acknowledgement_that_came_first_counts(site: OperationsSite, desk: ActionDesk) -> None:
    site.leave("one")
    desk.run(desk.plan("terminate", [site.slot()]), "Ann")
    number = str(outcomes(site.engine)[0].id)
    first, second = desk.plan("acknowledge", [number]), desk.plan("acknowledge", [number])
    assert not desk.run(first, "Ann").is_bad
    assert "acknowledged by Ann" in desk.run(second, "Bob").lines[0]
    assert [each.acknowledged_by for each in outcomes(site.engine, acknowledged=True)] == ["Ann"]
