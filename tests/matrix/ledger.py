"""What both sides have since the last look, and what is wrong with it. Between two looks only one cell runs."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sqlalchemy import Engine, select

from dualwrite.comparison.topic import TopicReader
from dualwrite.coordinator.replay.replay import ACKNOWLEDGED_BY
from dualwrite.coordinator.sql.outcome_store import HeuristicOutcome, acknowledge, outcomes
from dualwrite.errors import InputError
from tests.support.coordinator.event_table import slot_rows
from tests.support.crash.application import items
from tests.support.crash.oracle import CallerReports, Item, anomalies

_DEALT_WITH = "matrix"


@dataclass
class RunVerdict:
    """What one run has left on both sides.

    :param rows: in the database.
    :param records: in each topic, as a read_committed consumer sees it.
    :param committed: units whose caller had no answer, and that are in both.
    :param aborted: units whose caller had no answer, and that are in neither.
    """

    rows: int
    records: list[int]
    units: int
    unanswered: int
    committed: int
    aborted: int
    replayed: int
    heuristic: int
    divergences: list[str] = field(default_factory=list)


class PlaceLedger:
    """Reads two topics on, and the rows of new units.

    :param topics: the names of both.
    """

    def __init__(self, bootstrap_servers: str, topics: Sequence[str]) -> None:
        self._servers = bootstrap_servers
        self._topics = topics
        self._positions: dict[str, dict[int, int]] = {topic: {} for topic in topics}

    def read_on(self) -> tuple[list[Counter[Item]], list[str]]:
        """The items that a read_committed consumer sees since the last call, for each topic; and what is stuck: the
        partitions whose last stable offset is not their end."""
        seen, stuck = [], []
        for topic in self._topics:
            counted, held = self._read_topic(topic)
            seen.append(counted)
            stuck += held
        return seen, stuck

    def _read_topic(self, topic: str) -> tuple[Counter[Item], list[str]]:
        config = {"bootstrap.servers": self._servers}
        found: Counter[Item] = Counter()
        reader, all_reader = TopicReader(config, topic), TopicReader(config, topic, committed=False)
        try:
            reader.positions = dict(self._positions[topic])
            for batch in reader.read_on():
                for message in batch:
                    unit, _, item = (message.key() or b"").decode().partition(":")
                    found[unit, int(item)] += 1
            ends = all_reader.ends()
            held = [f"stuck: {topic}-{n} is shown up to {reader.positions[n]} of {ends[n]}" for n in ends]
            stuck = [line for n, line in zip(ends, held, strict=True) if reader.positions[n] < ends[n]]
        except InputError:
            return found, []  # nothing was produced yet
        finally:
            reader.close()
            all_reader.close()
        self._positions[topic] = reader.positions
        return found, stuck


def new_rows(engine: Engine, prefix: str) -> set[Item]:
    """The items of the units whose names begin with ``prefix``."""
    chosen = select(items.c.unit, items.c.item).where(items.c.unit.startswith(prefix, autoescape=True))
    with engine.connect() as connection:
        return {(unit, item) for unit, item in connection.execute(chosen)}


def held_slots(engine: Engine) -> list[str]:
    """The slots that a process holds, each as a sentence."""
    return [f"slot not free: {name} of {row.owner}" for name, row in slot_rows(engine).items() if row.owner]


def judge_run(
    engines: Iterable[Engine],
    prefix: str,
    told: CallerReports,
    read: tuple[list[Counter[Item]], list[str]],
    replayed_before: int = 0,
) -> RunVerdict:
    """Compare both sides after a run.

    :param engines: of each database that has rows of the run.
    :param prefix: with which the names of the run's units begin.
    :param read: what :meth:`PlaceLedger.read_on` has returned.
    :param replayed_before: what :func:`count_replayed` has returned before the run.
    """
    engines = list(engines)
    seen, stuck = read
    rows = {item for engine in engines for item in new_rows(engine, prefix)}
    units = {unit for unit, _ in rows}
    unanswered = told.begun - told.ok - told.no
    on_record = [outcome for engine in engines for outcome in outcomes(engine)]
    return RunVerdict(
        rows=len(rows),
        records=[counted.total() for counted in seen],
        units=len(told.begun),
        unanswered=len(unanswered),
        committed=len(unanswered & units),
        aborted=len(unanswered - units),
        replayed=sum(map(count_replayed, engines)) - replayed_before,
        heuristic=len(on_record),
        divergences=[
            *anomalies(rows, seen, told),
            *stuck,
            *(line for engine in engines for line in held_slots(engine)),
            *map(described, on_record),
        ],
    )


def described(outcome: HeuristicOutcome) -> str:
    """A heuristic outcome in a line."""
    return f"on record: {outcome.outcome.value} of {outcome.transactional_id} {outcome.state}"


def count_replayed(engine: Engine) -> int:
    """How many units were replayed in this database ever."""
    return sum(outcome.acknowledged_by == ACKNOWLEDGED_BY for outcome in outcomes(engine, acknowledged=True))


def clear_record(engine: Engine) -> None:
    """Acknowledge every outcome, so that a later run does not find it again."""
    for outcome in outcomes(engine):
        acknowledge(engine, outcome, by=_DEALT_WITH)


def audit(engine: Engine, bootstrap_servers: str, topics: Sequence[str], told: CallerReports) -> RunVerdict:
    """Compare all that both sides have, from the beginning."""
    ledger = PlaceLedger(bootstrap_servers, topics)
    return judge_run([engine], "", told, ledger.read_on())
