"""On docs/recipe.md a reader chooses the moment of a crash: in HTML without script, which says what the table says."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from drawing.crash_moments import moments
from drawing.files import RECIPE_PAGE
from drawing.moments_page import BEGIN, END, diagram, end_of_both, recovery_of, when, with_diagram, with_table

HOME = Path(__file__).parents[3]


def test_the_diagram_of_moments_is_html_without_script_and_one_moment_is_chosen() -> None:
    html = diagram()
    root = ElementTree.fromstring(html)
    inputs, labels = root.findall("input"), root.findall("label")
    assert [each.attrib["id"] for each in inputs] == [each.attrib["for"] for each in labels]
    assert len(inputs) == len(moments())
    assert {each.attrib["name"] for each in inputs} == {"moment"}
    assert sum("checked" in each.attrib for each in inputs) == 1
    assert "\n\n" not in html, "Markdown would end the block"
    assert not re.search(r"<script|\bon\w+=|https?:", html)


def test_the_diagram_says_of_each_moment_what_the_table_says() -> None:
    html, page = diagram(), (HOME / RECIPE_PAGE).read_text(encoding="utf-8")
    panels = re.findall(r'<div class="moment-panel" style="[^"]+" data-decision="(\w+)">\n(.*)</div>', html)
    rows = page.partition(BEGIN)[2].partition(END)[0].strip().splitlines()[2:]
    assert len(panels) == len(rows) == len(moments())
    for moment, (decision, panel), row in zip(moments(), panels, rows, strict=True):
        assert decision == moment.decision.value
        for text in (moment.sides.database.value, moment.sides.kafka.value, recovery_of(moment), end_of_both(moment)):
            assert text in panel
            assert text in row
        assert when(moment) in row
    assert html.count("moment-cross") == len(rows)


def test_every_class_of_the_diagram_is_in_the_style_sheet() -> None:
    style = (HOME / "docs" / "stylesheets" / "diagrams.css").read_text(encoding="utf-8")
    classes = {word for found in re.findall(r'class="([^"]+)"', diagram()) for word in found.split()}
    assert {word for word in classes if f".{word}" not in style} == set()
    assert "url(" not in style


def test_a_page_without_its_marks_is_refused() -> None:
    for page, lacks in (("no mark", BEGIN), (f"one {BEGIN}", END)):
        for replaced in (with_table, with_diagram):
            with pytest.raises(ValueError, match=f"lacks {re.escape(lacks)}"):
                replaced(page)
