"""A broker with the flights, a PostgreSQL server and the pipeline between them: each can be killed."""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from sqlalchemy import create_engine, inspect, text
from sqlalchemy.pool import NullPool

from dualwrite.coordinator.sql.tables import spark_run
from tests.spark.flights import source
from tests.spark.flights.answer import Delays, Findings, batches, compare_table, compare_topic
from tests.spark.flights.pipeline import EXECUTORS, Pipeline, PipelineTask
from tests.support.forked import ForkedKafkaBroker
from tests.support.servers.postgresql import PostgreSQL

VICTIMS = ("executor", "driver", "broker", "database")

_LONGEST_DELAY = 1.5
"""Seconds after a batch has begun to be written: it takes about that long."""

_POLL_SECONDS = 0.05
_READ_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class PlannedKill:
    """SIGKILL to ``victim``, ``delay`` seconds after a batch is being written and ``flights`` are in the table."""

    victim: str
    flights: int
    delay: float
    which: int


def plan(kills: int, flights: int, chance: random.Random) -> list[PlannedKill]:
    """``kills`` kills while ``flights`` are worked through: of each victim as many, in random order, evenly spread.

    Every other one comes as soon as a batch is being written, the others at a random moment then or after.
    """
    victims = [VICTIMS[number % len(VICTIMS)] for number in range(kills)]
    chance.shuffle(victims)
    delays = [chance.uniform(0, _LONGEST_DELAY) if number % 2 else 0.0 for number in range(kills)]
    return [
        PlannedKill(victim, flights * number // (kills + 1), delay, chance.randrange(EXECUTORS))
        for number, (victim, delay) in enumerate(zip(victims, delays, strict=True))
    ]


class FlightsWorld:
    """``with World(…) as world``: the servers run, and the topics are full.

    :param directory: for all files, the servers' among them.
    :param flights: as source.flights reads them.
    """

    def __init__(self, directory: Path, server: PostgreSQL, flights: Sequence[source.Row]) -> None:
        self._broker = ForkedKafkaBroker(directory / "broker")
        self._server = server
        self._directory = directory
        self._flights = flights
        self._engine = create_engine(server.url, poolclass=NullPool)
        self._pipeline: Pipeline | None = None
        self.killed = 0
        """How many processes were: the pipeline may end with an error only after somebody was."""
        self.gave_up = 0
        """How often the pipeline ended by itself, because somebody else was dead, and was started again."""

    @property
    def pipeline(self) -> Pipeline:
        """There is one between ``start`` and the end."""
        assert self._pipeline is not None
        return self._pipeline

    def start(self, batches: int, **other: Any) -> None:
        """Start the pipeline, which is to take the flights in ``batches``.

        :param other: as for Pipeline.
        """
        batch = -(-len(self._flights) // batches)
        task = PipelineTask(self._broker.bootstrap_servers, self._server.url, self._checkpoint, batch)
        self._pipeline = Pipeline(task, self._directory, **other)
        self._pipeline.start()

    def run(self, kills: Sequence[PlannedKill], say: Callable[[str], object]) -> None:
        """Run the pipeline through ``kills`` to its end. Each death is told to ``say``.

        A pipeline whose broker or database has died may end with an error; then it is started again, as any supervisor
        would do.
        """
        for number, kill in enumerate(kills, start=1):
            self._until(lambda least=kill.flights: self.counted() >= least and self.is_writing())
            time.sleep(kill.delay)
            counted, place = self.counted(), "while a batch was written" if self.is_writing() else "between batches"
            if self.kill(kill):
                say(f"kill {number}, of the {kill.victim}, {place}, with {counted:,} flights counted")
            else:
                say(f"kill {number}, of the {kill.victim}, came too late: all is done")
        self._until(lambda: False)

    def kill(self, kill: PlannedKill) -> bool:
        """Carry it out, and start again what does not start by itself; False if all is done already."""
        self._until(self.pipeline.executors)
        if self.pipeline.exit_code == 0:
            return False
        self.killed += 1
        if kill.victim == "broker":
            self._broker.kill()
            self._broker.start()
        elif kill.victim == "database":
            self._server.kill()
            self._server.start()
        elif kill.victim == "driver":
            self.pipeline.kill_driver()
            self.pipeline.start()
        else:
            self.pipeline.kill_executor(kill.which)
        return True

    def counted(self) -> int:
        """How many flights are in the sums of the table now."""
        return int(self._ask("delays", "SELECT sum(flights) FROM delays") or 0)

    def is_writing(self) -> bool:
        """True while a batch is being written, and is not committed."""
        name = spark_run.name
        return self._ask(name, f"SELECT count(*) FROM {name} WHERE state = 'open'") == 1

    def judge(self) -> list[Findings]:
        """Compare table and topic with what must have come of the flights."""
        everything = self._delays()
        for flight in self._flights:
            everything.add(flight)
        with self._engine.connect() as connection:
            table = compare_table(everything.rows, connection.execute(text("SELECT * FROM delays")).mappings())
        by_batch = self._delays()
        read = self._broker.read("flights", timeout=_READ_SECONDS)
        wanted = [record for batch in batches(self._checkpoint, read) for record in by_batch.batch(batch)]
        return [table, compare_topic(wanted, self._broker.read("delays", timeout=_READ_SECONDS))]

    def _ask(self, table: str, question: str) -> Any:
        """The answer to a question to ``table``; None if there is no such table yet."""
        with self._engine.connect() as connection:
            return connection.scalar(text(question)) if inspect(connection).has_table(table) else None

    @property
    def _checkpoint(self) -> Path:
        return self._directory / "checkpoint"

    def _delays(self) -> Delays:
        return Delays(source.airlines(), source.airports())

    def _until(self, is_so: Callable[[], object]) -> None:
        """Wait until ``is_so``, or until the pipeline has done its work."""
        while not is_so() and self.pipeline.exit_code != 0:
            if self.pipeline.exit_code is not None:
                self.gave_up += 1
                assert self.gave_up <= 2 * self.killed, self.pipeline.last_words()
                self.pipeline.start()
            time.sleep(_POLL_SECONDS)

    def __enter__(self) -> "FlightsWorld":
        self._broker.start()
        source.fill(self._broker, self._flights)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pipeline is not None:
            self._pipeline.close()
        self._engine.dispose()
        self._broker.stop()
