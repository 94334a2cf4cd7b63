"""One run of a cell, and the run of many cells in a seeded order until enough has been killed."""

import json
import random
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.matrix.cells import Arrangement, Cell, FaultKind, Mode, Victim
from tests.matrix.faults import cut_connection, fill_brokers_disk, fill_sqlites_disk, kill_worker, stop_worker
from tests.matrix.ledger import RunVerdict
from tests.matrix.neighbours import Neighbour, kill_beside_neighbour
from tests.matrix.places import MatrixPlace, Places
from tests.matrix.servers import MissingServerError
from tests.matrix.strikes import KILLS, Strike, kill_and_time_out

Shape = tuple[Victim, FaultKind]

_OTHERS: dict[Shape, Callable[[Strike], None]] = {
    (Victim.APPLICATION, FaultKind.SIGKILL_AND_TIMEOUT): kill_and_time_out,
    (Victim.WORKER, FaultKind.SIGKILL): kill_worker,
    (Victim.WORKER, FaultKind.SIGSTOP): stop_worker,
    (Victim.BROKER, FaultKind.CUT): cut_connection,
    (Victim.DATABASE, FaultKind.CUT): cut_connection,
    (Victim.BROKER, FaultKind.FULL_DISK): fill_brokers_disk,
    (Victim.DATABASE, FaultKind.FULL_DISK): fill_sqlites_disk,
}
_TIMES: dict[Shape, int] = {
    (Victim.APPLICATION, FaultKind.SIGKILL): 12,
    (Victim.APPLICATION, FaultKind.SIGKILL_AND_TIMEOUT): 3,
    (Victim.WORKER, FaultKind.SIGKILL): 8,
    (Victim.WORKER, FaultKind.SIGSTOP): 2,
    (Victim.BROKER, FaultKind.CUT): 24,
    (Victim.DATABASE, FaultKind.CUT): 24,
    (Victim.APPLICATION_AND_BROKER, FaultKind.SIGKILL): 4,
    (Victim.BROKER, FaultKind.SIGKILL): 3,
    (Victim.BROKER, FaultKind.POWER_CUT): 3,
    (Victim.APPLICATION_AND_BROKER, FaultKind.POWER_CUT): 4,
}
"""How often a run strikes: more often where a fault is cheap."""
_TIMES_ON_KAFKA = {Victim.BROKER: 1, Victim.APPLICATION_AND_BROKER: 1}
"""A node of Apache Kafka takes seconds to come back in sync."""


class RunGoal(NamedTuple):
    """When a run of many cells ends.

    :param kills: once so many processes were killed.
    :param seconds: once so many seconds are over.
    :param runs: once there were so many; 0 for any number.
    """

    kills: int
    seconds: float
    runs: int = 0


class Share(NamedTuple):
    """The part of the cells that one process runs: every ``of``-th one from ``number`` on."""

    number: int
    of: int


class MatrixRun:
    """Runs cells, and writes a line of JSON for each run.

    :param cells: those to choose from.
    :param directory: of the data; its own.
    :param log: where the lines go.
    """

    def __init__(self, cells: Sequence[Cell], seed: int, share: Share, directory: Path, log: Path) -> None:
        self._cells = cells
        self._seed = seed
        self._share = share
        self._places = Places(directory)
        self._neighbours: dict[MatrixPlace, Neighbour] = {}
        self._log = log
        self._deaths = 0
        self._skipped = set[Cell]()

    def run(self, goal: RunGoal) -> None:
        """Run cells, round after round, until ``goal`` is reached; then audit every place."""
        end = time.monotonic() + goal.seconds
        try:
            for number, cell in enumerate(self._order()):
                is_enough = goal.runs and number >= goal.runs
                if is_enough or self._deaths >= goal.kills or time.monotonic() > end:
                    break
                self.write(self._line(number, cell))
            for place in self._places.made():
                if place.key.arrangement is Arrangement.ALONE:
                    self.write({"audit": place.key.name, **asdict(place.audit())})
        finally:
            self.close()

    def close(self) -> None:
        """Leave nothing running."""
        self._close_neighbours()
        self._places.close()

    def _close_neighbours(self) -> None:
        for neighbour in self._neighbours.values():
            neighbour.close()
        self._neighbours.clear()

    def _order(self) -> Iterator[Cell]:
        """Every cell of this share once, in an order of the seed's; and again, in another."""
        for number in count():
            cells = list(self._cells)
            random.Random(f"{self._seed} {number}").shuffle(cells)
            yield from cells[self._share.number :: self._share.of]
            if len(self._skipped) >= len(self._cells):
                return

    def _line(self, number: int, cell: Cell) -> dict[str, Any]:
        name = f"r{self._share.number}.{number}."
        line: dict[str, Any] = {"run": name, "seed": self._seed, **cell.as_json()}
        began = time.monotonic()
        try:
            line |= self._perform(cell, name)
        except MissingServerError as error:
            self._skipped.add(cell)
            line["skipped"] = str(error)
        except pytest.skip.Exception as skipped:  # Apache Kafka's jars are not there
            self._skipped.add(cell)
            line["skipped"] = str(skipped)
        except Exception:  # noqa: BLE001  it is in the log, and counted: one failure does not end the others
            line["error"] = traceback.format_exc()
            self._close_neighbours()
            self._places.start_anew()
        return {**line, "seconds": round(time.monotonic() - began, 3)}

    def _perform(self, cell: Cell, name: str) -> dict[str, Any]:
        place = self._places.of(cell)
        times = _TIMES_ON_KAFKA.get(cell.victim) if cell.mode is Mode.RESUME_ON_KAFKA else None
        times = times or _TIMES.get((cell.victim, cell.kind), 2)
        strike = Strike(cell, place, name, random.Random(f"{self._seed} {name}"), times)
        if cell.arrangement is Arrangement.ALONE:
            _OTHERS.get((cell.victim, cell.kind), KILLS.get(cell.victim, kill_worker))(strike)
            verdict = place.close_run(name)
        else:
            verdict = self._beside(strike)
        self._deaths += strike.struck.deaths
        return {**asdict(strike.struck), **_checked(verdict, strike)}

    def _beside(self, strike: Strike) -> RunVerdict:
        if strike.place not in self._neighbours:
            self._neighbours[strike.place] = Neighbour(strike.place)
        return kill_beside_neighbour(strike, self._neighbours[strike.place])

    def write(self, line: dict[str, Any]) -> None:
        """Add ``line`` to the log."""
        with self._log.open("a", encoding="utf-8") as log:
            log.write(json.dumps(line) + "\n")


def _checked(verdict: RunVerdict, strike: Strike) -> dict[str, Any]:
    """The verdict, with the strike's own problems among the divergences."""
    verdict.divergences += strike.struck.problems
    return asdict(verdict)
