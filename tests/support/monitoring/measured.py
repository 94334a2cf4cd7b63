"""A broker whose metrics are scraped."""

import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from dualwrite.broker.metrics.metric import PREFIX
from tests.support.waiting import PATIENCE_SECONDS, eventually

Values = dict[tuple[str, ...], float]


@dataclass
class MeasuredBroker:
    """A broker that answers Prometheus."""

    process: "subprocess.Popen[bytes]"
    address: str
    secure_address: str
    log: Path

    @property
    def url(self) -> str:
        text = eventually(self.log.read_text, lambda text: "metrics at " in text)
        found = re.search(r"metrics at (http://[^\s\"]+)", text)
        assert found is not None
        return found[1]

    def scrape(self) -> dict[str, Values]:
        """name -> {values of the labels, which come in alphabetical order: value}, without the prefix."""
        with urllib.request.urlopen(self.url, timeout=PATIENCE_SECONDS) as answer:
            text = answer.read().decode()
        found: dict[str, Values] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found.setdefault(sample.name.removeprefix(PREFIX), {})[tuple(sample.labels.values())] = sample.value
        return found

    def probe(self, path: str) -> tuple[int, dict[str, str], str]:
        """The status of ``/healthz`` or ``/readyz``, its checks and its verdict."""
        status, text = fetch(self.url.removesuffix("/metrics") + path)
        answer = json.loads(text)
        return status, answer["checks"], answer["status"]


def fetch(url: str, seconds: float = PATIENCE_SECONDS) -> tuple[int, str]:
    """The status and the body of a page."""
    try:
        with urllib.request.urlopen(url, timeout=seconds) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refusal:
        with refusal:
            return refusal.code, refusal.read().decode()


@contextmanager
def measured_broker(
    scratch: Path, *config: str, options: Sequence[str] = (), secure: str = "SASL_PLAINTEXT"
) -> Iterator[MeasuredBroker]:
    """Listens without security and with that of the protocol ``secure``, on the data directory ``scratch``/data. Stops
    cleanly, without a traceback.

    :param config: settings as ``key=value``.
    :param options: further options of the command.
    """
    ready, log = scratch / "ready", scratch / "log"
    listeners = f"listeners=PLAINTEXT://127.0.0.1:0,{secure}://127.0.0.1:0"
    command = [
        sys.executable,
        "-m",
        "dualwrite",
        "broker",
        "--metrics",
        "127.0.0.1:0",
        "--config",
        listeners,
        *config,
        *options,
    ]
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [*command, "--data-dir", str(scratch / "data"), "--ready-file", str(ready)], stderr=stderr
        )
    try:
        eventually(ready.exists, bool)
        first, _, second = ready.read_text().splitlines()
        yield MeasuredBroker(process, first, second.split()[1], log)
    finally:
        process.terminate()
        code = process.wait(PATIENCE_SECONDS)
    assert code == 0
    assert "Traceback" not in log.read_text()
