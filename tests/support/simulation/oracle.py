"""What must hold after a run: every unit of work is in both places or in neither, once, and its caller was told so.

Anomalies have Jepsen's names: lost write, aborted read, torn transaction, duplicate write, dirty read. *Stuck* means
that a transaction is open for ever, so that no read_committed reader gets past it.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from dualwrite.coordinator.rules.machine import Result


@dataclass(frozen=True)
class Ended:
    """What a run has left.

    :param rows: the attempts whose rows the database has.
    :param records: the values that a read_committed reader got: the attempt and the number of each. An offset that an
        attempt has committed is one of its records here.
    :param withdrawn: the values that it got during the run, and not in the end.
    :param records_of: how many records each attempt has.
    :param answers: what the caller of each attempt was told.
    :param units_left: how many units of work no process began.
    :param unstable: the partitions in which a transaction is open.
    :param is_read: True if the reader has read every partition.
    :param outcomes: the heuristic outcomes that are on record and should not be.
    :param unrecorded: the slots with a unit of work that should be on record, and is not.
    :param failures: the exceptions that ended threads.
    :param waiting: the threads that wait for ever.
    :param broken: what must never happen, and has happened.
    """

    rows: Sequence[str]
    records: Sequence[str]
    withdrawn: Sequence[str]
    records_of: Mapping[str, int]
    answers: Mapping[str, str]
    units_left: int
    unstable: Sequence[str]
    is_read: bool
    outcomes: Sequence[tuple[str, str]]
    unrecorded: Sequence[str]
    failures: Sequence[str]
    waiting: Sequence[str]
    broken: Sequence[str]


def anomaly_in(ended: Ended) -> str:
    """The first anomaly, by name, and what was found; empty if there is none."""
    return next(_anomalies(ended), "")


def name_of(anomaly: str) -> str:
    """Its name alone."""
    return anomaly.partition(":")[0]


def _anomalies(ended: Ended) -> Iterator[str]:
    yield from (broken for broken in ended.broken if broken.startswith(("lost write", "dirty read")))
    yield from _of_the_two_sides(ended)
    yield from _of_the_answers(ended)
    if ended.withdrawn:
        yield f"lost write: a reader got {ended.withdrawn[0]}, which is not there any more"
    if ended.unstable or not ended.is_read:
        yield f"stuck: a transaction is open for ever in {', '.join(ended.unstable) or 'a log that no reader gets'}"
    if ended.outcomes:
        yield f"false alarm: {ended.outcomes} on record"
    if ended.unrecorded:
        yield f"lost write: a unit of work of {ended.unrecorded[0]} is in another cluster, and that is not on record"
    if ended.waiting:
        yield f"deadlock: {', '.join(ended.waiting)} wait for ever"
    yield from (f"crash: {failure}" for failure in ended.failures)
    if ended.units_left:
        yield f"deadlock: no process began {ended.units_left} units of work"
    yield from ended.broken


def _of_the_two_sides(ended: Ended) -> Iterator[str]:
    rows = Counter(ended.rows)
    records = Counter(ended.records)
    numbers: dict[str, int] = Counter(record.partition("/")[0] for record in records)
    for attempt in sorted(numbers.keys() - rows.keys()):
        whole = numbers[attempt] == ended.records_of.get(attempt)
        name = "aborted read" if whole else "torn transaction"
        yield f"{name}: readers get records of {attempt}, and the database has no row of it"
    for attempt in sorted(rows):
        count, expected = numbers.get(attempt, 0), ended.records_of[attempt]
        if not count:
            yield f"lost write: the database has {attempt}, and readers get none of its records"
        elif count < expected:
            yield f"torn transaction: readers get {count} of the {expected} records of {attempt}"
    twice = [record for record, times in records.items() if times > 1]
    if twice:
        yield f"duplicate write: readers get {twice[0]} {records[twice[0]]} times"
    units = Counter(attempt.partition(".")[0] for attempt in ended.rows)
    repeated = [unit for unit, times in units.items() if times > 1]  # its caller runs it again once it is rolled back
    if repeated:
        yield f"duplicate write: the database has {repeated[0]} {units[repeated[0]]} times"


def _of_the_answers(ended: Ended) -> Iterator[str]:
    rows = set(ended.rows)
    for attempt, answer in ended.answers.items():
        if answer == Result.SUCCEEDED.name and attempt not in rows:
            yield f"lost write: {attempt} has succeeded for its caller, and is in neither place"
        if answer in (Result.ROLLED_BACK.name, "never began") and attempt in rows:
            yield f"duplicate write: {attempt} was rolled back for its caller, who may run it again, and it is there"
