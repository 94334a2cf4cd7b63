"""What needs a person, with the evidence of both sides, the verdict, its reason, and what can be done."""

import shlex
from dataclasses import replace

import pytest
from sqlalchemy import create_engine

from dualwrite.console.commands import MOST_TARGETS, Commands
from dualwrite.console.needs import ELSEWHERE, FAILED_CHECK, HAS_COPY, IN_DOUBT, TOO_LONG, Card, failed_checks, needs
from dualwrite.coordinator.recovery.forecast import Forecast
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.coordinator.rules.slot_rules import SlotStatus
from dualwrite.coordinator.sql.outcome_store import HeuristicOutcome
from dualwrite.operations.findings import failure, ok, warning
from dualwrite.operations.views import TransactionView
from tests.support.console.views import MOMENT, commands, kafka_view, outcome_record, view_of

LEFT = view_of(SlotStatus.DEAD, kafka_view(age=240.0), forecast=Forecast(Outcome.COMMITTED))


def cards(
    *views: TransactionView, recorded: tuple[HeuristicOutcome, ...] = (), obstacle: str = "", long_seconds: float = 60.0
) -> list[Card]:
    return needs(views, recorded, obstacle=obstacle, now=MOMENT, long_seconds=long_seconds, commands=commands())


def test_a_transaction_in_doubt_has_both_sides_evidence_and_both_ways_out() -> None:
    (card,) = cards(LEFT)
    assert (card.kind, card.subject, card.verdict) == (IN_DOUBT, "a-0", "commit")
    assert card.database == "decided on 7:3; owner: host:1, dead"
    assert card.kafka == "Ongoing, 7:3, open since 2026-01-02 11:56:00 UTC, in 1 partition"
    assert card.reason == "open, and its owner is gone: recovery ends it"
    assert [(move.verb, move.targets) for move in card.moves] == [("resolve", ("a-0",)), ("terminate", ("a-0",))]


def test_an_undecided_transaction_of_a_dead_owner_would_be_aborted() -> None:
    (card,) = cards(view_of(SlotStatus.EXPIRED, kafka_view(), decided=None))
    assert (card.database, card.verdict) == ("decided on nothing; owner: host:1, silent", "abort")


def test_an_unclear_recovery_offers_nothing_and_says_why() -> None:
    (card,) = cards(replace(LEFT, forecast=Forecast(None, "look again")))
    assert (card.verdict, card.reason, card.moves) == ("unclear", "look again", ())


def test_an_id_that_is_no_slot_is_not_offered_to_recovery() -> None:
    (card,) = cards(view_of(SlotStatus.EXPIRED, kafka_view(), name="custom"))
    assert [move.verb for move in card.moves] == ["terminate"]


def test_a_foretold_heuristic_outcome_is_one_card_for_all_slots_of_a_restored_copy() -> None:
    hazard = Forecast(Outcome.HEURISTIC_HAZARD, "the cluster has lost it")
    (card,) = cards(*(view_of(SlotStatus.EXPIRED, kafka_view(), name=f"a-{n}", forecast=hazard) for n in range(5)))
    assert (card.kind, card.count, card.reason) == ("heuristic hazard", 5, "the cluster has lost it")
    assert card.subject == "5 slots (a-0, a-1, a-2 and 2 more)"
    assert card.verdict == "recovery would find a heuristic hazard"
    assert card.moves[0].targets == ("a-0", "a-1", "a-2", "a-3", "a-4")


def test_an_outcome_on_record_offers_its_acknowledgement() -> None:
    (card,) = cards(view_of(SlotStatus.FREE, kafka_view("CompleteAbort", None)), recorded=(outcome_record(17),))
    assert (card.kind, card.database, card.kafka) == ("heuristic abort", "stored 7:17", "now CompleteAbort, 7:3")
    assert (card.verdict, card.reason) == ("on record as 17, found at 2026-01-02 11:55:00 UTC", "the two sides differ")
    assert [(move.verb, move.targets) for move in card.moves] == [("acknowledge", ("17",))]


def test_an_outcome_that_the_application_replays_says_so() -> None:
    recorded = (outcome_record(17), outcome_record(18, "a-1"))
    first, second = needs(
        (), recorded, awaiting_replay=(18,), obstacle="", now=MOMENT, long_seconds=60.0, commands=commands()
    )
    assert "replay" not in first.reason
    assert "Besides, the records of 1 outcome (18) are kept: an application with replay=True" in second.reason


def test_many_outcomes_of_one_kind_are_acknowledged_together() -> None:
    found = tuple(outcome_record(n, f"a-{n}", Outcome.HEURISTIC_HAZARD) for n in (3, 4, 9, 10))
    (card,) = cards(recorded=found)
    assert (card.count, card.database, card.kafka) == (4, "4 units of work", "")
    assert card.verdict == "on record as 3, 4, 9 and 1 more, found at 2026-01-02 11:55:00 UTC"
    assert card.moves[0].targets == ("3", "4", "9", "10")


def test_an_action_on_very_many_targets_is_offered_for_the_first_of_them() -> None:
    found = tuple(outcome_record(n, f"a-{n}", Outcome.HEURISTIC_HAZARD) for n in range(1, MOST_TARGETS + 11))
    hazard = Forecast(Outcome.HEURISTIC_HAZARD, "lost")
    names = [f"b-{number:04}" for number in range(MOST_TARGETS + 5)]
    recorded, foretold = cards(
        *(view_of(SlotStatus.EXPIRED, kafka_view(), name=name, forecast=hazard) for name in names), recorded=found
    )
    for card, more in ((recorded, 10), (foretold, 5)):
        (move,) = card.moves
        assert (card.count, len(move.targets)) == (MOST_TARGETS + more, MOST_TARGETS)
        assert set(move.targets) <= set(shlex.split(move.command))


def test_in_a_copy_nothing_can_be_resolved() -> None:
    copy, card = cards(replace(LEFT, forecast=None), obstacle="the rows are another database's")
    assert (copy.kind, copy.verdict, copy.reason) == (
        HAS_COPY,
        "recovery does nothing",
        "the rows are another database's",
    )
    assert (card.verdict, card.moves) == ("none: a copy", ())


def test_slots_in_another_cluster_are_named_with_what_to_do() -> None:
    foreign = view_of(SlotStatus.FOREIGN, cluster="there")
    working = view_of(SlotStatus.HELD, name="a-1", cluster="there")
    left, held = cards(foreign, working)
    assert (left.kind, left.subject, left.verdict) == (ELSEWHERE, "a-0", "recovered there")
    assert "Connect to the other one" in left.reason
    assert (held.kind, held.subject, held.verdict) == (ELSEWHERE, "a-1", "its owner's")
    assert "last used in the Kafka cluster there" in held.reason
    assert (left.moves, held.moves) == ((), ())


def test_a_living_owner_s_transaction_is_reported_only_when_it_is_open_for_long() -> None:
    working = view_of(SlotStatus.HELD, kafka_view(age=61.0))
    (card,) = cards(working)
    assert (card.kind, card.verdict, card.moves) == (TOO_LONG, "its owner's", ())
    assert cards(working, long_seconds=62.0) == []


@pytest.mark.parametrize(("timeout_ms", "count"), [(2**31 - 1, 1), (60_000, 0)], ids=["two-phase commit", "expires"])
def test_a_transaction_of_no_row_is_reported_if_kafka_never_ends_it(timeout_ms: int, count: int) -> None:
    found = cards(view_of(None, kafka_view(age=3600.0, timeout_ms=timeout_ms)))
    assert [(card.kind, card.database) for card in found] == [(TOO_LONG, "no row")] * count
    assert [move.verb for card in found for move in card.moves] == ["terminate"] * count


def test_what_is_in_order_needs_no_person() -> None:
    assert cards(view_of(SlotStatus.FREE), view_of(SlotStatus.HELD, kafka_view("CompleteCommit", None))) == []
    assert cards(view_of(SlotStatus.EXPIRED, kafka_view("PrepareCommit"))) == []


def test_a_command_line_is_quoted_and_has_no_password() -> None:
    lines = commands("postgresql+psycopg://u:geheim@db/x", **{"sasl.password": "geheim"})
    for line in (lines.resolve(["a b-0", "c-1"]), lines.terminate("a b-0"), lines.acknowledge([1, 2]), lines.doctor()):
        assert "geheim" not in line
    words = shlex.split(lines.resolve(["a b-0", "c-1"]).partition(" (with ")[0])
    assert words[:6] == ["dualwrite", "transactions", "resolve", "a b-0", "c-1", "--yes"]
    assert words[6:10] == ["--bootstrap-servers", "kafka:9092", "--command-config", "FILE"]
    for dashed in (commands(), commands("postgresql+psycopg://u:geheim@db/x")):
        assert shlex.split(dashed.terminate("-x").partition(" (with ")[0])[-2:] == ["--", "-x"]
    assert shlex.split(commands().acknowledge([1], by="Ann O'Hara"))[3:6] == ["1", "--by", "Ann O'Hara"]
    assert shlex.split(commands().terminate("a-1", by="Ann O'Hara"))[3:7] == ["a-1", "--yes", "--by", "Ann O'Hara"]


def test_the_doctors_command_has_the_applications_mode() -> None:
    """Without it the doctor would ask for two-phase commit, and call its lack a failure."""
    resuming = Commands(create_engine("sqlite:///app.db"), {"bootstrap.servers": "kafka:9092"}, "resume")
    assert shlex.split(resuming.doctor())[:4] == ["dualwrite", "doctor", "--two-phase", "resume"]
    assert "--two-phase" not in commands().doctor()


def test_the_doctor_s_failures_need_a_person_but_not_those_that_the_page_shows_live() -> None:
    found = [
        ok("clock", "fine"),
        warning("durability", "synchronous is off"),
        failure("protocol", "too old", "upgrade the broker"),
        failure("schema", "the state tables are missing"),
        failure("transactions", "left open"),
        failure("kafka", "away"),
    ]
    cards_of_doctor = failed_checks(found, commands())
    assert [(card.kind, card.subject, card.verdict) for card in cards_of_doctor] == [
        (FAILED_CHECK, "protocol", "too old"),
        (FAILED_CHECK, "schema", "the state tables are missing"),
    ]
    assert [card.reason for card in cards_of_doctor] == [
        "upgrade the broker",
        "see dualwrite doctor --bootstrap-servers kafka:9092 --db sqlite:///app.db",
    ]
