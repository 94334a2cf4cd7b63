"""Heuristic outcomes for operators: listed, and acknowledged once an operator has dealt with them.

Recovery writes them (``decision_store.py``); docs/outcomes.md says what each means and what to do about it. These are
plain functions over an Engine, for DualWrite and the command line.
"""

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from sqlalchemy import Engine, Row, select, update

from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.coordinator.rules.slot_rules import slot_number
from dualwrite.coordinator.sql.decision_store import SqlDecisionStore
from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.coordinator.sql.engine.database_errors import as_library_errors, connected
from dualwrite.coordinator.sql.engine.error_meanings import clear_errors
from dualwrite.coordinator.sql.identity_rows import read_identity
from dualwrite.coordinator.sql.own_tables import ours
from dualwrite.coordinator.sql.tables import kafka_transaction_outcome as table
from dualwrite.errors import InputError

_LONGEST_NAME = 255
_LARGEST_NUMBER = 2**63 - 1


@dataclass(frozen=True)
class HeuristicOutcome:
    """A unit of work that ended differently in the database and in Kafka.

    :param id: its number, in the order of discovery.
    :param transactional_id: the slot in which it ran.
    :param state: KIP-939's producerId:epoch of its Kafka transaction; and the position of one of its records, as
        topic:partition:offset, if known.
    :param outcome: the outcome, under XA's name.
    :param detail: the meaning, in a line.
    :param found_at: when recovery found it, in UTC by the database's clock.
    :param acknowledged_at: when :func:`acknowledge` was called; None if it has not been.
    :param acknowledged_by: the name given to :func:`acknowledge`.
    """

    id: int
    transactional_id: str
    state: str
    outcome: Outcome
    detail: str
    found_at: datetime
    acknowledged_at: datetime | None
    acknowledged_by: str | None


def outcomes(engine: Engine, application: str | None = None, *, acknowledged: bool = False) -> list[HeuristicOutcome]:
    """The heuristic outcomes that were found, the oldest first.

    :param application: only those of this application; None for all that use the database.
    :param acknowledged: also those that are acknowledged.
    :raises DatabaseNotReadyError: before ``dualwrite db upgrade``.
    :raises DatabaseUnavailableError: if the database cannot be reached now.
    """
    statement = select(table).order_by(table.c.id)
    if not acknowledged:
        statement = statement.where(table.c.acknowledged_at.is_(None))
    with as_library_errors(engine.dialect), connected(engine) as connection, clear_errors(engine):
        name = None if application is None else read_identity(connection).name_of(application)
        stored_outcomes = [
            _outcome_of(row) for row in connection.execute(statement, execution_options=ours(connection))
        ]
    return [outcome for outcome in stored_outcomes if name is None or _is_application(name, outcome)]


def acknowledge(engine: Engine, outcome: HeuristicOutcome | int, *, by: str) -> HeuristicOutcome:
    """Record that ``by`` has dealt with ``outcome``. It stays on record. The first acknowledgement counts.

    :param outcome: as :func:`outcomes` returned it, or its id.
    :param by: the name of a person: 1 to 255 printable characters.
    :returns: the outcome as it is on record now.
    :raises InputError: if no outcome has that id, or ``by`` is not a name.
    :raises DatabaseNotReadyError: before ``dualwrite db upgrade``.
    :raises DatabaseUnavailableError: if the database cannot be reached now.
    """
    number = outcome.id if isinstance(outcome, HeuristicOutcome) else outcome
    require_name(by, "acknowledged by")
    if type(number) is not int or not 0 < number <= _LARGEST_NUMBER:
        raise _no_outcome(number)
    store = SqlDecisionStore(engine)
    with as_library_errors(engine.dialect), store.transaction(commit=True) as connection, clear_errors(engine):
        connection.execute(
            update(table)
            .where(table.c.id == number, table.c.acknowledged_at.is_(None))
            .values(acknowledged_at=database_of(engine.dialect).now(), acknowledged_by=by),
            execution_options=ours(connection),
        )
        row = connection.execute(
            select(table).where(table.c.id == number), execution_options=ours(connection)
        ).one_or_none()
    if row is None:
        raise _no_outcome(number)
    return _outcome_of(row)


def require_name(by: str, act: str) -> None:
    """Require the name of a person.

    :param act: what the person did, for the error.
    :raises InputError: unless ``by`` is 1 to 255 printable characters.
    """
    if not isinstance(by, str) or not by.strip() or not by.isprintable() or len(by) > _LONGEST_NAME:
        raise InputError(f"{act} {by!r:.80}: say who, in 1 to {_LONGEST_NAME} printable characters")


def _no_outcome(number: object) -> InputError:
    return InputError(
        f"there is no heuristic outcome {number!r:.80}: outcomes() and `dualwrite transactions list` show them"
    )


def _outcome_of(row: Row[Any]) -> HeuristicOutcome:
    state = row.prepared_txn_state if row.first_record is None else f"{row.prepared_txn_state}:{row.first_record}"
    return HeuristicOutcome(
        row.id,
        row.transactional_id,
        state,
        Outcome(row.outcome),
        row.detail,
        in_utc(row.found_at),
        None if row.acknowledged_at is None else in_utc(row.acknowledged_at),
        row.acknowledged_by,
    )


def in_utc(moment: datetime) -> datetime:
    """``moment`` with its time zone UTC, which some databases store and others imply."""
    return moment.replace(tzinfo=timezone.utc) if moment.tzinfo is None else moment.astimezone(timezone.utc)


def _is_application(application: str, outcome: HeuristicOutcome) -> bool:
    return slot_number(application, outcome.transactional_id) is not None
