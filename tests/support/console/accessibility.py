"""What axe-core finds wrong with a page in the browser, by the rules of WCAG 2.1 (A and AA) and its good practices."""

from collections.abc import Iterator

from axe_core_python.selenium import Axe

from tests.support.console.browser import Browser

_TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]


def violations(browser: Browser) -> Iterator[str]:
    """Each broken rule, with the element that breaks it."""
    report = Axe().run(browser.driver, options={"runOnly": {"type": "tag", "values": _TAGS}})
    for violation in report["violations"]:
        for node in violation["nodes"]:
            yield f"{violation['id']}: {node['target']}: {node['failureSummary']}"
