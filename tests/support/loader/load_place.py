"""``dualwrite load`` as a process: a file, a database, a topic, and signals at any step of any unit of work."""

import json
import subprocess
import sys
from pathlib import Path

from dualwrite.broker.embedded import EmbeddedBroker
from dualwrite.cli.db import upgrade
from tests.support.loader.input_files import csv_text, make_database, write_input
from tests.support.peer_clients.kafka_helpers import visible

_STRUCK = """
import itertools, os, signal, sys
from dualwrite.coordinator import dual_write as unit_of_work
from dualwrite.cli.main import main
count = itertools.count(1)
def observe(step):
    if step == {step!r} and next(count) == {unit}:
        os.kill(os.getpid(), signal.{signal})
unit_of_work.no_observer = observe
sys.exit(main(sys.argv[1:]))
"""


class LoadPlace:
    """A directory with a file of twenty rows and a database, and a topic of its own."""

    def __init__(self, directory: Path, broker: EmbeddedBroker) -> None:
        self.file = write_input(directory / "f.csv.zip", "id,name\n" + csv_text(20))
        self.engine = make_database(directory, ready=False)
        self.url = self.engine.url.render_as_string()
        upgrade(self.url)
        self.topic = directory.name.replace("[", "-").replace("]", "-")
        self._bootstrap = broker.bootstrap_servers

    def words(self, *options: str, file: str | None = None) -> list[str]:
        """The arguments that load ``file``, by default the place's own, in batches of six."""
        given = {"--db": self.url, "--table": "flights", "--topic": self.topic, "--bootstrap-servers": self._bootstrap}
        words = [word for pair in given.items() for word in pair]
        return ["load", file or str(self.file), *words, "--batch-size", "6", *options]

    def command(self, *options: str, file: str | None = None) -> list[str]:
        """The command line with these arguments."""
        return [sys.executable, "-m", "dualwrite", *self.words(*options, file=file)]

    def load(
        self, *options: str, file: str | None = None, text: str | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """Run it to its end, with ``text`` in its standard input; a later option overrides an earlier one."""
        command = self.command(*options, file=file)
        return subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=60)

    def struck(
        self, signal: str, step: str, unit: int, *options: str, file: str | None = None, text: str | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """Run it until it sends itself ``signal`` right before ``step`` of the ``unit``-th unit of work, from 1."""
        code = _STRUCK.format(signal=signal, step=step, unit=unit)
        command = [sys.executable, "-c", code, *self.words(*options, file=file)]
        return subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=60)

    def committed(self) -> list[dict[str, object]]:
        """What a read_committed consumer sees in the topic, up to the last stable offset."""
        return [json.loads(value) for value in visible(self._bootstrap, self.topic)]
