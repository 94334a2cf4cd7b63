"""The sentence at the top, its colour, and the table of slots, as a function of the answers."""

from dataclasses import replace

import pytest

from dualwrite.console.looks import BothLook
from dualwrite.console.needs import IN_DOUBT
from dualwrite.console.page import BOTH, DATABASE, DOCTOR, KAFKA, MOST_NEEDS, MOST_SLOTS, Light, seconds_text
from dualwrite.console.watching import LookAnswer
from dualwrite.coordinator.recovery.forecast import Forecast
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.coordinator.rules.slot_rules import SlotStatus
from dualwrite.operations.findings import failure
from dualwrite.operations.views import TransactionView
from tests.support.console.views import answers, kafka_view, outcome_record, shown, view_of

WORKING = view_of(SlotStatus.HELD, kafka_view(age=0.4))
LEFT = view_of(SlotStatus.EXPIRED, kafka_view(), forecast=Forecast(Outcome.COMMITTED))


def test_without_a_problem_the_sentence_is_green_and_names_the_oldest_open_transaction() -> None:
    sentence = shown(
        answers([WORKING, view_of(SlotStatus.FREE, kafka_view("CompleteCommit", None), name="a-1")])
    ).sentence
    assert (sentence.light, sentence.text) == (Light.GREEN, "0 in doubt, oldest open transaction 0.4 s")


def test_the_page_of_an_application_without_a_slot_is_not_green() -> None:
    known = answers()
    known[BOTH] = replace(known[BOTH], value=BothLook((), "", "application 'ordres' has no slot in this database"))
    sentence = shown(known).sentence
    assert sentence.light is Light.GREY
    assert sentence.text.endswith("no open transaction; application 'ordres' has no slot in this database")


def test_without_an_open_transaction_the_sentence_says_so() -> None:
    assert shown(answers()).sentence.text == "0 in doubt, no open transaction"


def test_a_transaction_of_a_dead_owner_is_in_doubt_and_red() -> None:
    page = shown(answers([LEFT, WORKING]))
    assert (page.sentence.light, page.sentence.text) == (Light.RED, "1 in doubt, oldest open transaction 3.0 s")
    assert [(need.kind, need.subject) for need in page.needs] == [(IN_DOUBT, "a-0")]


def test_outcomes_on_record_are_counted_by_kind() -> None:
    found = [outcome_record(1), outcome_record(2, "a-1"), outcome_record(3, "a-2", Outcome.HEURISTIC_HAZARD)]
    assert shown(answers([], found)).sentence.text == (
        "0 in doubt, 2 heuristic aborts, 1 heuristic hazard, no open transaction"
    )


def test_outcomes_of_one_copy_are_one_card_and_all_counted() -> None:
    page = shown(answers([], [outcome_record(n, f"a-{n}", Outcome.HEURISTIC_HAZARD) for n in range(1, 31)]))
    assert "30 heuristic hazards" in page.sentence.text
    assert len(page.needs) == 1


def test_before_the_first_answer_the_sentence_is_grey() -> None:
    page = shown({name: LookAnswer(waited=0.1) for name in (DATABASE, KAFKA, BOTH)})
    assert page.sentence.light is Light.GREY
    assert (page.needs, page.slots, page.troubles) == ((), (), ())


@pytest.mark.parametrize("part", [DATABASE, KAFKA])
@pytest.mark.parametrize("silence", [{"reason": "connection refused"}, {"waited": 5.1}], ids=["refuses", "hangs"])
def test_a_side_that_does_not_answer_is_red_and_named(part: str, silence: dict[str, object]) -> None:
    known = answers([WORKING])
    known[part] = replace(known[part], age=7.0, **silence)  # type: ignore[arg-type]
    page = shown(known)
    subject = "The database" if part == DATABASE else "Kafka"
    assert page.sentence.light is Light.RED
    assert page.sentence.text.endswith(f"; {subject} does not answer")
    (trouble,) = page.troubles
    assert trouble.startswith(f"{subject} does not answer: ")
    assert trouble.endswith("; the last answer is 7.0 s old")


def test_without_kafka_the_rows_are_shown_and_nothing_is_concluded() -> None:
    known = answers([LEFT])
    known[KAFKA] = LookAnswer(reason="no broker answers")
    known[BOTH] = LookAnswer(reason="no broker answers")
    page = shown(known)
    (slot,) = page.slots
    assert (slot.name, slot.database, slot.state, slot.recovery) == ("a-0", "7:3", "not asked", "not known")
    assert page.needs == ()
    assert page.sentence.text == "in doubt: not known; Kafka does not answer"
    assert page.troubles == ("Kafka does not answer: no broker answers",)


def test_without_the_database_kafka_s_open_transactions_are_shown() -> None:
    known = answers([LEFT])
    known[KAFKA] = replace(
        known[KAFKA], value=replace(known[KAFKA].value, open_views=(TransactionView("a-0", None, LEFT.kafka),))
    )
    known[DATABASE] = LookAnswer(reason="connection refused")
    known[BOTH] = LookAnswer(reason="connection refused")
    page = shown(known)
    (slot,) = page.slots
    assert (slot.name, slot.database, slot.kafka, slot.state, slot.open_for) == (
        "a-0",
        "no row",
        "7:3",
        "Ongoing",
        "3.0 s",
    )
    assert page.sentence.text == "in doubt: not known, oldest open transaction 3.0 s; The database does not answer"


def test_without_the_database_s_first_answer_kafka_s_are_shown_beside_the_outcomes_of_none() -> None:
    page = shown({DATABASE: LookAnswer(reason="no"), KAFKA: LookAnswer(reason="no"), BOTH: LookAnswer(reason="no")})
    assert (page.slots, page.needs) == ((), ())
    assert len(page.troubles) == 2


def test_outcomes_on_record_are_shown_without_kafka() -> None:
    known = answers([], [outcome_record()])
    known[KAFKA] = known[BOTH] = LookAnswer(reason="no broker answers")
    assert [need.kind for need in shown(known).needs] == ["heuristic abort"]


def test_a_failed_comparison_of_two_sides_that_answer_is_named() -> None:
    known = answers([WORKING])
    known[BOTH] = replace(known[BOTH], reason="CLUSTER_AUTHORIZATION_FAILED")
    page = shown(known)
    assert page.troubles == (
        "The two sides cannot be compared: CLUSTER_AUTHORIZATION_FAILED; the last answer is 0.0 s old",
    )
    assert page.sentence.light is Light.RED


def test_a_comparison_may_take_longer_than_a_first_answer_and_its_age_is_told() -> None:
    known = answers([WORKING])
    known[BOTH] = replace(known[BOTH], waited=30.0, age=31.0)
    page = shown(known)
    assert (page.sentence.light, page.as_of) == (Light.GREEN, "31 s")
    known[BOTH] = replace(known[BOTH], waited=61.0)
    assert shown(known).sentence.light is Light.RED


def test_of_many_slots_those_that_need_attention_are_shown_first_and_the_rest_is_counted() -> None:
    quiet = [view_of(SlotStatus.FREE, name=f"a-{number}") for number in range(20_000)]
    page = shown(answers([*quiet, replace(LEFT, transactional_id="z-0")]))
    assert len(page.slots) == MOST_SLOTS
    assert page.more_slots == 20_001 - MOST_SLOTS
    assert [slot.name for slot in page.slots[:2]] == ["z-0", "a-0"]
    assert [slot.is_bad for slot in page.slots[:2]] == [True, False]


def test_of_many_cards_the_first_are_shown_and_all_are_counted() -> None:
    page = shown(answers([replace(LEFT, transactional_id=f"a-{number}") for number in range(1000)]))
    assert (len(page.needs), page.more_needs) == (MOST_NEEDS, 1000 - MOST_NEEDS)
    assert page.sentence.text.startswith("1,000 in doubt")


def test_a_slot_is_shown_with_both_identities_its_owner_and_its_lease() -> None:
    (slot,) = shown(answers([WORKING])).slots
    assert (slot.owner, slot.lease, slot.token) == ("host:1", "5 s left", "12")
    assert (slot.database, slot.kafka, slot.state, slot.partitions) == ("7:3", "7:3", "Ongoing", "1")
    assert slot.recovery == "its owner's"
    (free,) = shown(answers([view_of(SlotStatus.FREE)])).slots
    assert (free.owner, free.lease, free.state) == ("free", "", "unknown")
    (silent,) = shown(answers([LEFT])).slots
    assert (silent.owner, silent.lease, silent.recovery) == ("host:1", "silent", "commit")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-1.0, "0.0 s"), (0.04, "0.0 s"), (9.9, "9.9 s"), (9.96, "10 s"), (61.0, "1 min"), (7200.0, "2 h")],
)
def test_a_duration_has_a_decimal_below_ten_seconds(seconds: float, text: str) -> None:
    assert seconds_text(seconds) == text


def test_a_failed_check_of_the_doctor_is_red() -> None:
    known = answers([WORKING])
    known[DOCTOR] = LookAnswer()
    assert shown(known).sentence.light is Light.GREEN
    known[DOCTOR] = LookAnswer((failure("protocol", "too old"), failure("schema", "missing")), age=0.0)
    page = shown(known)
    assert (page.sentence.light, page.sentence.text) == (
        Light.RED,
        "0 in doubt, 2 failed checks, oldest open transaction 0.4 s",
    )
