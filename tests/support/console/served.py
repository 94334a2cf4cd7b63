"""``dualwrite console`` as a process, and a browser's requests to it."""

import html
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPResponse
from time import monotonic
from typing import NamedTuple
from urllib.parse import urlencode

from tests.support.operations.places import OperationsSite

SECONDS = 60
"""The most that an answer may take."""


class Served(NamedTuple):
    """An answer of the console."""

    status: int
    headers: Mapping[str, str]
    body: str


class ConsoleProcess:
    """``dualwrite console WORDS`` as a process, on a port of its own."""

    def __init__(self, *words: str, environment: Mapping[str, str] | None = None) -> None:
        command = [sys.executable, "-m", "dualwrite", "console", "--port", "0", "--interval", "0.1", *words]
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.startswith("the console is at http://"), line or self.end()
        self.url = line.split()[4]

    def get(self, path: str = "", headers: Mapping[str, str] | None = None) -> Served:
        return self._ask(urllib.request.Request(self.url + path, headers=dict(headers or {})))

    def page(self, headers: Mapping[str, str] | None = None) -> str:
        """The page, once both sides have been looked at for the first time."""
        limit = monotonic() + SECONDS
        while "sentence grey" in (body := self.get("", headers).body):
            assert monotonic() < limit, body
        return body

    def post(self, path: str, fields: Mapping[str, str], headers: Mapping[str, str] | None = None) -> Served:
        data = urlencode(fields).encode()
        return self._ask(urllib.request.Request(self.url + path, data, dict(headers or {})))

    def events(self) -> Iterator[tuple[str, str]]:
        """The live events: the section's name and its text."""
        with urllib.request.urlopen(self.url + "events", timeout=SECONDS) as stream:
            yield from events_in(stream)

    def until(self, section: str, is_it: Callable[[str], bool]) -> str:
        """The first text of ``section`` for which ``is_it`` is true."""
        limit, last = monotonic() + SECONDS, ""
        for name, text in self.events():
            if name == section:
                last = text
                if is_it(text):
                    return text
            if monotonic() > limit:
                break
        raise AssertionError(f"no {section} came that was waited for; the last one: {last}")

    def interrupt(self) -> tuple[int, str]:
        """Ctrl-C; returns the exit code and what it said on stderr."""
        self.process.send_signal(signal.SIGINT)
        _, errors = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, errors

    def end(self) -> str:
        """Kill it; returns what it said on stderr."""
        self.process.kill()
        return self.process.communicate(timeout=SECONDS)[1]

    def _ask(self, request: urllib.request.Request) -> Served:
        try:
            with urllib.request.urlopen(request, timeout=SECONDS) as answer:
                return Served(answer.status, dict(answer.headers.items()), answer.read().decode())
        except urllib.error.HTTPError as error:
            with error:
                return Served(error.code, dict(error.headers.items()), error.read().decode())


def events_in(stream: HTTPResponse) -> Iterator[tuple[str, str]]:
    """The events of a stream of server-sent events."""
    name, data = "", []
    for line in map(bytes.decode, stream):
        field, _, value = line.rstrip("\n").partition(": ")
        if field == "event":
            name = value
        elif field == "data":
            data.append(value)
        elif not field and data:
            yield name, "\n".join(data)
            name, data = "", []


def hidden_fields(page: str) -> list[dict[str, str]]:
    """The hidden fields of each form."""
    forms = re.findall(r"<form.*?</form>", page, re.DOTALL)
    fields = [re.findall(r'name="(\w+)" value="([^"]*)"', form) for form in forms]
    return [{name: html.unescape(value) for name, value in each} for each in fields]


def form_of(page: str, verb: str) -> dict[str, str]:
    """The fields of the first button for ``verb``."""
    return next(form for form in hidden_fields(page) if form["verb"] == verb)


def confirm(console: ConsoleProcess, planned: Served, by: str) -> Served:
    """Confirm the plan of a page."""
    (form,) = hidden_fields(planned.body)
    return console.post("run", {**form, "by": by})


@contextmanager
def console_of(
    site: OperationsSite, *words: str, environment: Mapping[str, str] | None = None
) -> Iterator[ConsoleProcess]:
    """The console of a site, for its application."""
    places = ["--db", site.url, "--bootstrap-servers", site.broker.bootstrap_servers]
    console = ConsoleProcess(*places, "--application", site.application, *words, environment=environment)
    try:
        yield console
    finally:
        console.end()
