"""The pages that are drawn from the code say what the code says."""

import re
import runpy
from pathlib import Path

import pytest

from dualwrite.broker.api import api_versions
from dualwrite.broker.api.routes import MODULES, ROUTES, advertised
from dualwrite.broker.settings.broker_settings import SETTINGS
from dualwrite.broker.settings.dynamic_settings import DYNAMIC_SETTINGS
from dualwrite.broker.settings.topic_settings import TOPIC_SETTINGS
from dualwrite.wire.apis import ApiKey

DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.parametrize("page", ["states", "apis", "acls", "metrics", "settings", "producer"])
def test_a_drawn_page_is_up_to_date(page: str) -> None:
    drawn = runpy.run_path(str(DOCS / "draw.py"))[f"{page}_page"]()
    assert (DOCS / "reference" / f"{page}.md").read_text() == drawn, "run: python docs/draw.py"


def test_every_state_of_both_machines_is_drawn() -> None:
    page = (DOCS / "reference" / "states.md").read_text()
    for name in ("LEAVING_DOUBT", "DATABASE_FAILED", "PREPARE_COMMIT", "COMPLETE_ABORT"):
        assert name in page


def test_every_api_that_is_advertised_is_on_the_page_with_its_versions() -> None:
    page = (DOCS / "reference" / "apis.md").read_text()
    rows = dict(re.findall(r"^\| \w+ \| (\d+) \| (\d+ to \d+) \|", page, re.MULTILINE))
    assert rows == {str(int(key)): f"{route.versions[0]} to {route.versions[-1]}" for key, route in ROUTES.items()}
    for key, versions in advertised():
        assert versions[-1] == ROUTES[ApiKey(key)].versions[-1]


def test_apis_documented_as_missing_are_not_routed() -> None:
    drawing = runpy.run_path(str(DOCS / "draw.py"))
    assert not set(drawing["NOT_HERE"]) & set(ROUTES)
    assert set(drawing["PARTIAL"]) <= set(ROUTES)
    assert set(ROUTES) <= set(drawing["KAFKA_4_4"])


def test_each_apis_specification_begins_with_its_key_and_its_versions() -> None:
    for module in (*MODULES, api_versions):
        title, _, _ = (module.__doc__ or "").partition("\n")
        first, last = module.VERSIONS[0], module.VERSIONS[-1]
        versions = f"v{first}-v{last}" if first != last else f"v{first}"
        assert re.match(rf"\w+ \({int(module.KEY)}\), {versions}\b", title), title


def test_every_setting_is_on_the_page_with_its_default_and_a_sentence() -> None:
    page = (DOCS / "reference" / "settings.md").read_text()
    brokers, _, topics = page.partition("## A topic's")
    for text, settings in ((brokers, SETTINGS), (topics, TOPIC_SETTINGS)):
        rows = re.findall(r"^\| `([a-z0-9.]+)` \| (?:`(.*?)`)? *\| (.+?) \| (.*?) \| (.+\.) \|$", text, re.MULTILINE)
        assert {name: default for name, default, *_ in rows} == {
            name: each.default or "" for name, each in settings.items()
        }
        assert len(rows) == len(settings)
    running = set(re.findall(r"^\| `([a-z0-9.]+)` \|.*\| while it runs \|", brokers, re.MULTILINE))
    assert running == DYNAMIC_SETTINGS
