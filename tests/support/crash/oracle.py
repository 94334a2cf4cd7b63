"""What must hold after recovery, whatever was killed when: each unit of work whole on both sides or on neither, once.

The names of what can go wrong are Jepsen's: a *lost write* (acknowledged, or on one side, and not on the other), a
*duplicate*, an *aborted read* (visible though its unit was undone) and a *torn transaction* (part of a unit). A
heuristic outcome on record where nobody meddled is a *false alarm*, or a write that was lost.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from sqlalchemy import Engine, select

from dualwrite.comparison.topic import read_topic
from dualwrite.coordinator.sql.outcome_store import outcomes
from tests.support.crash.application import LEFT, RIGHT, items

Item = tuple[str, int]


@dataclass
class CallerReports:
    """What the application's callers were told."""

    begun: set[str] = field(default_factory=set)
    ok: set[str] = field(default_factory=set)
    no: set[str] = field(default_factory=set)
    doubt: set[str] = field(default_factory=set)
    paused: bool = False

    def take(self, line: str) -> None:
        word, _, rest = line.strip().partition(" ")
        if word == "paused":
            self.paused = True
        elif word in ("begun", "ok", "no", "doubt"):
            getattr(self, word).add(rest.partition(" ")[0])


def visible(bootstrap_servers: str, topic: str) -> Counter[Item]:
    """The items that a read_committed consumer sees."""
    found: Counter[Item] = Counter()
    for key, _ in read_topic(bootstrap_servers, topic, "read_committed"):
        unit, _, item = key.decode().partition(":")
        found[unit, int(item)] += 1
    return found


def stored(engine: Engine) -> set[Item]:
    """The items in the database."""
    with engine.connect() as connection:
        return {(unit, item) for unit, item in connection.execute(select(items.c.unit, items.c.item))}


def anomalies(in_database: set[Item], topics: Iterable[Counter[Item]], told: CallerReports) -> list[str]:
    """Everything that is wrong, in words."""
    found = []
    units = {unit for unit, _ in in_database}
    for in_topic in topics:
        lost = in_database - set(in_topic)
        unread = set(in_topic) - in_database
        twice = [item for item, count in in_topic.items() if count > 1]
        torn = {unit for unit, _ in lost} & {unit for unit, _ in in_topic}
        found += [f"lost write: {item}" for item in sorted(lost)]
        found += [f"aborted read: {item}" for item in sorted(unread)]
        found += [f"duplicate: {item}" for item in sorted(twice)]
        found += [f"torn transaction: {unit}" for unit in sorted(torn)]
    found += [f"lost write: {unit} was acknowledged" for unit in sorted(told.ok - units)]
    found += [f"aborted read: {unit} was said to be undone" for unit in sorted(told.no & units)]
    return found


def judge(engine: Engine, bootstrap_servers: str, told: CallerReports) -> list[str]:
    """:func:`anomalies` of what is on both sides now, and what recovery has called heuristic."""
    topics = [visible(bootstrap_servers, topic) for topic in (LEFT, RIGHT)]
    heuristic = [f"{outcome.outcome.value}: {outcome.transactional_id} {outcome.state}" for outcome in outcomes(engine)]
    return anomalies(stored(engine), topics, told) + heuristic
