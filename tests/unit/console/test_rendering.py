"""The page in HTML: nothing that a name or a message contains becomes markup, and nothing comes from another host."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from dualwrite.console.acting import ActionPlan
from dualwrite.console.lag import HeldPartition, LagLook, WaitingGroup
from dualwrite.console.plots import plot
from dualwrite.console.rendering import HOME, Templates, event
from dualwrite.console.units import Timeline, TimelineOffsets, TimelineStep
from dualwrite.console.watching import LookAnswer
from dualwrite.coordinator.recovery.forecast import Forecast
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.coordinator.rules.slot_rules import SlotStatus
from dualwrite.ids import TopicPartition
from dualwrite.operations.findings import failure, ok, warning
from dualwrite.operations.spark_runs import OpenRun
from tests.support.console.views import MOMENT, answers, kafka_view, outcome_record, shown, view_of

SECTIONS = ("sentence", "needs", "slots")
TEXTS = ("value", "aria-label", "id")
"""Attributes that are text, or a name that only the page itself uses."""
ATTACKS = [
    "<script>alert(1)</script>",
    "'><img src=x onerror=alert(1)>",
    '" hx-get="//evil.example" hx-trigger="load',
    "</section><section sse-swap=needs>",
    "{{ 7 * 7 }}{% raw %}",
    "a\r\nevent: needs\ndata: <b>x</b>",
    "\u202egnp.exe\x00\x1b[31m",
]


class Elements(HTMLParser):
    """The tags and the attributes of a text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs


def rendered(attack: str) -> str:
    """Every section with ``attack`` wherever a text from outside is shown."""
    recorded = replace(outcome_record(name=attack), detail=attack, state=attack)
    left = view_of(SlotStatus.EXPIRED, kafka_view(attack), name=f"{attack}-0")
    doubt = view_of(
        SlotStatus.EXPIRED, kafka_view(), name=f"{attack}-1", forecast=Forecast(Outcome.HEURISTIC_HAZARD, attack)
    )
    known = answers([left, doubt], [recorded], obstacle=attack)
    known["Kafka"] = LookAnswer(known["Kafka"].value, reason=attack)
    page = shown(known)
    held = HeldPartition(TopicPartition(attack, 0), 7, 3, 10, attack, MOMENT, (WaitingGroup(attack, 2),))
    lag = LookAnswer(LagLook((held, replace(held, holder=None, since=None, groups=())), (attack,)), reason=attack)
    step = TimelineStep(attack, 0.0, 1.0, attack)
    offsets = TimelineOffsets(attack, False, ((TopicPartition(attack, 0), 5),))
    timeline = Timeline(attack, attack, 0.0, (step,), (offsets, replace(offsets, in_database=True)), 3)
    templates = Templates()
    return "".join(
        [
            *(templates.render(name, content=page, token="token") for name in SECTIONS),
            templates.render("lag", answer=lag, owners={attack: attack}),
            templates.render("spark", answer=LookAnswer((OpenRun(attack, 1, -1.0, attack), OpenRun("j", 2, 9.0, "t")))),
            templates.render("doctor", answer=LookAnswer((failure(attack, attack, attack),)), command=attack),
            templates.render(
                "plan",
                plan=ActionPlan("resolve", (attack,), (attack,), attack, attack),
                key=attack,
                token="token",
                by=attack,
            ),
            templates.render("units", timelines=[(attack, timeline)]),
            templates.render("plots", plots=[plot(attack, attack, [(attack, [1.0])])]),
            templates.render("done", title=attack, lines=(attack,), is_bad=True),
        ]
    )


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_name_or_a_message_never_becomes_markup(attack: str) -> None:
    harmless, attacked = Elements(rendered("harmless")), Elements(rendered(attack))
    assert attacked.tags == harmless.tags
    assert [name for name, _ in attacked.attributes] == [name for name, _ in harmless.attributes]
    fixed = [(name, value) for name, value in harmless.attributes if name not in TEXTS]
    assert [(name, value) for name, value in attacked.attributes if name not in TEXTS] == fixed


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_a_browser_would_obey_or_hide_is_shown_with_escapes(attack: str) -> None:
    text = rendered(attack)
    assert not {"\u202e", "\x00", "\x1b", "\r"} & set(text)
    assert "49" not in text.replace("149", "")


def test_a_timeline_names_each_groups_offsets_and_counts_those_that_are_not_kept() -> None:
    first, second = (TopicPartition("t", number) for number in range(2))
    offsets = (TimelineOffsets("g", False, ((first, 3), (second, 7))), TimelineOffsets("h", True, ((first, 1),)))
    timeline = Timeline("a-0", "committed", 0.1, (), offsets, 4)
    text = Templates().render("units", timelines=[("the newest", timeline)])
    assert "offsets of group g, in the Kafka transaction: t-0 at 3, t-1 at 7</p>" in text
    assert "offsets of group h, in the database: t-0 at 1</p>" in text
    assert "and of 4 more partitions</p>" in text
    without = Templates().render("units", timelines=[("the newest", replace(timeline, offsets=(), more_positions=0))])
    assert "offsets" not in without
    assert "more partitions" not in without


def test_an_event_cannot_be_forged_by_a_message() -> None:
    lines = event("needs", rendered("a\r\nevent: sentence\ndata: x")).splitlines()
    assert lines[0] == "event: needs"
    assert all(line.startswith("data: ") for line in lines[1:-1])
    assert lines[-1] == ""


def test_the_whole_page_has_no_inline_script_no_inline_style_and_no_other_host() -> None:
    page = Templates().page({"needs": rendered("x")}, database="sqlite:///a.db", cluster="<b>", application="<i>")
    elements = Elements(page)
    assert "style" not in elements.tags
    assert not [name for name, _ in elements.attributes if name.startswith("on") or name == "style"]
    links = [value or "" for name, value in elements.attributes if name in ("src", "href", "action", "sse-connect")]
    assert links
    assert all(re.fullmatch(r"static/[a-z0-9.-]+|events|plan|run|\./", link) for link in links)
    assert set(re.findall(r"<script[^>]*>([^<]*)</script>", page)) == {""}
    assert "&lt;b&gt;" in page
    assert "application &lt;i&gt;" in page


def test_htmx_is_told_to_evaluate_nothing_and_to_add_no_style() -> None:
    page = Templates().page({}, database="", cluster="", application=None)
    for setting in ('"allowEval": false', '"allowScriptTags": false', '"includeIndicatorStyles": false'):
        assert setting in page


def test_every_static_file_that_the_page_names_is_in_the_package() -> None:
    page = Templates().page({}, database="", cluster="", application=None)
    named = set(re.findall(r'(?:src|href)="(static/[^"]+)"', page))
    assert len(named) == 4
    assert all((HOME / name).is_file() for name in named)


def test_what_is_vendored_is_named_with_its_version_and_its_licence() -> None:
    static = HOME / "static"
    licences = (static / "LICENSES.txt").read_text(encoding="utf-8")
    vendored = [path.name for path in static.glob("*.js")]
    assert len(vendored) == 2
    for name in vendored:
        version = re.search(r"-(\d+\.\d+\.\d+)\.min\.js$", name)
        assert version is not None
        assert f"{name}: " in licences
        assert version[1] in licences
    assert licences.count("Permission to use, copy, modify, and/or distribute this software") == 2


def test_the_stylesheet_fetches_nothing() -> None:
    style = Path(HOME / "static" / "console.css").read_text(encoding="utf-8")
    assert "url(" not in style
    assert "@import" not in style


def test_what_waits_is_shown_with_the_transaction_its_owner_and_the_groups() -> None:
    held = HeldPartition(
        TopicPartition("orders", 3), 1200, 5, 1205, "shop-0", MOMENT, (WaitingGroup("g", 4), WaitingGroup("h", 0))
    )
    text = Templates().render(
        "lag", answer=LookAnswer(LagLook((held,), ("a note",))), owners={"shop-0": "host:1, dead"}
    )
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", text)
    assert cells == [
        "orders-3",
        "1,200",
        "5",
        "1205",
        "shop-0",
        "2026-01-02 12:00:00 UTC",
        "host:1, dead",
        "g (4 before it), h",
    ]
    assert "a note" in text


def test_an_empty_look_a_missing_one_and_a_failed_one_are_told_apart() -> None:
    render = Templates().render
    assert "looking …" in render("lag", answer=LookAnswer(), owners={})
    assert "no right" in render("lag", answer=LookAnswer(reason="no right"), owners={})
    assert "Nothing: " in render("lag", answer=LookAnswer(LagLook(())), owners={})
    assert "None." in render("spark", answer=LookAnswer(()))
    assert "All 2 checks are ok." in render("doctor", answer=LookAnswer((ok("a", ""), ok("b", ""))), command="x")


def test_the_doctor_s_findings_are_shown_with_their_advice() -> None:
    found = (ok("a", "fine"), warning("b", "late", "hurry"), failure("c", "gone"))
    text = Templates().render("doctor", answer=LookAnswer(found), command="dualwrite doctor")
    assert "<b>warning</b> b: late → hurry" in text
    assert "<b>failure</b> c: gone</li>" in text
    assert "fine" not in text
    assert "and 1 checks that are ok" in text


def test_an_overdue_run_is_marked() -> None:
    runs = (OpenRun("nightly", 77, -3.0, "stage"), OpenRun("hourly", 78, 12.4, "s.stage"))
    text = Templates().render("spark", answer=LookAnswer(runs))
    assert re.findall(r"<td[^>]*>([^<]*)</td>", text) == [
        "nightly",
        "77",
        "stage",
        "overdue",
        "hourly",
        "78",
        "s.stage",
        "12 s",
    ]
    assert text.count('class="bad"') == 1
