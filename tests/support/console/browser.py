"""A real browser, Chromium, driven by Selenium.

DUALWRITE_TEST_CHROMIUM and DUALWRITE_TEST_CHROMEDRIVER name its two programs, unless they are in the PATH.
"""

import base64
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple

from selenium.common.exceptions import StaleElementReferenceException, TimeoutException
from selenium.webdriver import ActionChains, Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.wait import WebDriverWait

SECONDS = 60
"""The most that the page may take to change."""
DESKTOP = 1200
PHONES = (320, 360, 412)
"""Widths in CSS pixels. At 320 nothing may scroll sideways (WCAG 1.4.10, Reflow)."""
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
MISSING = "no browser: it is in Debian's packages chromium and chromium-driver"
_WORDS = ("--headless=new", "--disable-dev-shm-usage", "--disable-background-networking", "--no-first-run")
_MOST_TABS = 60
_FOCUSED_LABEL = """
const focused = document.activeElement;
if (focused === null || focused === document.body) return null;
return focused.ariaLabel ?? (focused.labels?.[0] ?? focused).innerText.trim();
"""
_MARGIN = 12
_QUALITY = 85


class BrowserPrograms(NamedTuple):
    """The paths of Chromium and of its driver."""

    browser: str
    driver: str


def find_browser() -> BrowserPrograms | None:
    """The programs; None if one of them is missing."""
    browser = os.environ.get("DUALWRITE_TEST_CHROMIUM") or shutil.which("chromium")
    driver = os.environ.get("DUALWRITE_TEST_CHROMEDRIVER") or shutil.which("chromedriver")
    return BrowserPrograms(browser, driver) if browser and driver else None


class Browser:
    """One window of Chromium without a screen."""

    def __init__(self, programs: BrowserPrograms) -> None:
        options = ChromeOptions()
        options.binary_location = programs.browser
        for word in (*_WORDS, *(["--no-sandbox"] if os.geteuid() == 0 else [])):  # root's Chromium has no sandbox
            options.add_argument(word)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = Chrome(options, ChromeService(programs.driver))

    def close(self) -> None:
        """End the browser and its driver."""
        self.driver.quit()

    def fresh(self) -> None:
        """As it was started: an empty page, a wide window, light, with scripts, and nothing in the log."""
        self.driver.get("about:blank")
        self.look()
        self.complaints()

    def look(self, *, width: int = DESKTOP, scheme: Literal["light", "dark"] = "light", scripts: bool = True) -> None:
        """Change what the browser tells its pages of itself; from the next page on it runs ``scripts`` or not."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < DESKTOP}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        self.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": not scripts})

    def open(self, url: str) -> None:
        """Load a page."""
        self.driver.get(url)

    def run(self, script: str, *arguments: Any) -> Any:
        """The value of ``script``, which the driver runs in the page, outside of the page's Content-Security-Policy."""
        return self.driver.execute_script(script, *arguments)

    def complaints(self) -> list[str]:
        """The errors and warnings in the console's log since the last call."""
        entries = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [entry["message"] for entry in entries if entry["level"] in ("WARNING", "SEVERE")]

    def text(self, selector: str = "body") -> str:
        """The visible text of the first element of ``selector``; empty if there is none."""
        while True:
            found = self.driver.find_elements(By.CSS_SELECTOR, selector)
            with suppress(StaleElementReferenceException):  # the page has just replaced it
                return found[0].text if found else ""

    def until(self, selector: str, text: str) -> str:
        """Wait until the first element of ``selector`` shows ``text``; return all its text."""
        shown = ""

        def has_come() -> bool:
            nonlocal shown
            shown = self.text(selector)
            return text in shown

        self.wait(has_come, f"{selector} shows no {text!r}")
        return shown

    def wait(self, is_it: Callable[[], bool], message: str) -> None:
        """Wait until ``is_it``. What the page replaces meanwhile is looked for again."""
        try:
            WebDriverWait(
                self.driver, SECONDS, poll_frequency=0.05, ignored_exceptions=[StaleElementReferenceException]
            ).until(lambda _: is_it())
        except TimeoutException:
            raise AssertionError(f"{message}: {self.text()}") from None

    def click(self, label: str) -> None:
        """Click the first button or link whose text begins with ``label``."""

        def is_clicked() -> bool:
            controls = self.driver.find_elements(By.CSS_SELECTOR, "button, a")
            found = [control for control in controls if control.text.startswith(label)]
            for control in found[:1]:
                control.click()
            return bool(found)

        self.wait(is_clicked, f"no button and no link is labelled {label!r}")

    def fill(self, name: str, text: str) -> None:
        """Type ``text`` into the field ``name``, in place of what it has."""
        field = self.driver.find_element(By.NAME, name)
        field.clear()
        field.send_keys(text)

    def press(self, *keys: str) -> None:
        """Press ``keys`` one after the other, wherever the focus is."""
        ActionChains(self.driver).send_keys(*keys).perform()

    def tab_to(self, label: str) -> None:
        """Press Tab until the focus is at the control that is labelled ``label``."""
        labels = []
        for focused in self.focused_in_turn():
            labels.append(focused)
            if focused.startswith(label):
                return
        raise AssertionError(f"Tab reaches no {label!r}, but {labels}")

    def focused_in_turn(self) -> Iterator[str]:
        """Press Tab again and again, and yield the label of what has the focus then; until the page has none."""
        for _ in range(_MOST_TABS):
            self.press(Keys.TAB)
            label = self.run(_FOCUSED_LABEL)
            if label is None:
                return
            yield label
        raise AssertionError("Tab never leaves the page")

    def focused_target(self) -> str:
        """The target of the form whose button has the focus; empty if none has it."""
        script = "return document.activeElement.form?.querySelector('[name=target]')?.value ?? ''"
        return str(self.run(script))

    def content_width(self) -> int:
        """The width of the page's content in CSS pixels; above that of the window the page scrolls sideways."""
        return int(self.run("return document.documentElement.scrollWidth"))

    def screenshot(self, parts: Sequence[str] = ("body",)) -> bytes:
        """A picture of the page from the top of the first of ``parts``, which are selectors, to the end of the last."""
        boxes = [
            self.run(
                "const box = document.querySelector(arguments[0]).getBoundingClientRect();"
                "return [box.top + scrollY, box.bottom + scrollY]",
                part,
            )
            for part in parts
        ]
        top, bottom = max(0, boxes[0][0] - _MARGIN), boxes[-1][1] + _MARGIN
        clip = {"x": 0, "y": top, "width": self.content_width(), "height": bottom - top, "scale": 1}
        words = {"format": "webp", "quality": _QUALITY, "clip": clip, "captureBeyondViewport": True}
        taken = self.driver.execute_cdp_cmd("Page.captureScreenshot", words)
        return base64.b64decode(taken["data"])
