"""Ends open transactions of dead owners at once, as the state table decides, for an operator.

Recovery does the work (coordinator/slots/sweeper.py): lease, row lock, InitProducerId with keepPreparedTxn, verdict.
This module only plans: the action for each transactional id, or the reason why it is left unchanged.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Engine

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.manager.unit_manager import manager_of
from dualwrite.coordinator.rules.recovery_decision import Outcome, RecoveryDecision
from dualwrite.coordinator.rules.slot_rules import (
    ENDED,
    SlotStatus,
    describe_owner,
    is_another,
    left_in_another_cluster,
    named,
)
from dualwrite.coordinator.rules.two_phase import TwoPhase
from dualwrite.errors import ForeignClusterError, InputError
from dualwrite.operations.copies import reason_to_leave
from dualwrite.operations.listing import IS_LOCKED, inspector, list_transactions, views_of
from dualwrite.operations.rows import state_rows
from dualwrite.operations.views import Situation, TransactionView, foreign_cluster_message

_POOL_SIZE = 1
"""Recovery goes by the rows, and leases none for units of work. With a larger pool, a name that only just fits would be
refused."""


@dataclass(frozen=True, slots=True)
class Intention:
    """The planned action for one transactional id.

    :param obstacle: the reason why the transactional id is left unchanged; empty if there is none.
    """

    view: TransactionView
    obstacle: str

    @property
    def action(self) -> RecoveryDecision | None:
        """The action in Kafka; None if there is an obstacle."""
        return None if self.obstacle else self.view.verdict


@dataclass(slots=True)
class Resolution:
    """The result of resolving.

    :param outcomes: the outcomes by transactional id.
    :param missed: transactional ids with an open transaction that are unchanged, because another process took them
        meanwhile, for one of ``errors``, or because a transaction of the database has locked their row.
    :param in_use: those with an open transaction whose owner may be alive, and why they are unchanged. That is usual
        beside a living application; to replace the cluster, wait until there is none.
    """

    outcomes: dict[str, Outcome] = field(default_factory=dict)
    missed: list[str] = field(default_factory=list)
    errors: list[Exception] = field(default_factory=list)
    in_use: dict[str, str] = field(default_factory=dict)

    @property
    def is_bad(self) -> bool:
        """True if a slot is still to be resolved, or a unit of work ended differently on the two sides."""
        return bool(self.missed or self.errors) or any(outcome.is_heuristic for outcome in self.outcomes.values())


def plan(
    engine: Engine,
    kafka: Mapping[str, Any],
    *,
    application: str | None = None,
    transactional_ids: Sequence[str] = (),
) -> list[Intention]:
    """The plan of :func:`resolve`. Changes nothing.

    :param application: plan for all slots of this application that have a row.
    :param transactional_ids: plan for these, also if they have no open transaction.
    :raises InputError: if neither the database nor Kafka knows one of the ids, or the application has no slot.
    """
    copy = reason_to_leave(engine, kafka)
    if application is not None:
        listed = list_transactions(engine, kafka, application=application, foretells=not copy)
        views = [view for view in listed if view.row is not None]
        if not views:
            require_application(engine, application)
    else:
        with inspector(kafka) as cluster:
            views = list(views_of(engine, cluster, dict.fromkeys(transactional_ids), foretells=not copy).values())
        require_known(views)
    return [Intention(view, obstacle(view) or (copy if view.is_recoverable else "")) for view in views]


def require_known(views: Collection[TransactionView]) -> None:
    """Require that the database or Kafka knows each of ``views``.

    :raises InputError: if neither knows one of them. The message names it.
    """
    for view in views:
        if view.row is None and view.kafka is None:
            raise InputError(f"{view.transactional_id}: no such transactional id, neither in the database nor in Kafka")


def obstacle(view: TransactionView) -> str:
    """The reason why recovery may not take the transactional id of ``view``; empty if it may."""
    if view.row is None:
        return "no row names it, so this database has not decided on it: if no other has, `terminate` aborts it"
    if view.application is None:
        return "the id is not the name of a slot"
    if view.situation is Situation.AT_WORK:
        return held_by(view)
    if view.row.is_locked:
        return IS_LOCKED.detail
    return foreign_cluster_message([view]) or opened_by_another(view)


def opened_by_another(view: TransactionView) -> str:
    """The obstacle of a slot that was given back in another Kafka cluster, if a transaction is open under its name in
    the one that was queried: another database has begun it there, and may have decided it. Most likely the address is
    wrong. Empty for every other slot."""
    if not (view.is_recoverable and view.is_elsewhere and view.kafka is not None and view.kafka.is_open):
        return ""
    assert view.row is not None
    return (
        f"it was last used in the Kafka cluster {view.row.slot.cluster_id}, and this is the cluster {view.cluster_id}, "
        "where another database has a transaction open under its name, and may have decided it. Connect to the cluster "
        "of this database; or, if this is the one, abort that transaction with `dualwrite transactions terminate`, and "
        "try again"
    )


def held_by(view: TransactionView) -> str:
    """The obstacle of a slot in use: its owner may be alive."""
    assert view.row is not None
    slot = view.row.slot
    return (
        f"{describe_owner(slot.owner)} has it, and may be alive: its lease has {slot.remaining or 0:.0f} s left. It "
        "ends the transaction itself; or stop the process, and try again"
    )


def resolve(
    engine: Engine,
    kafka: Mapping[str, Any],
    intentions: Sequence[Intention],
    *,
    two_phase: TwoPhase = "keep-prepared",
) -> Resolution:
    """Carry out :func:`plan`, as far as it still applies: the row decides under its lock, not the plan.

    A slot that a process has taken meanwhile stays unchanged. One that its process held, and in which nothing was open,
    needs nothing.

    :param two_phase: the application's own mode, as for DualWrite.
    """
    resolution = Resolution()
    by_application: dict[str, list[str]] = {}
    for intention in intentions:
        if not intention.obstacle and intention.view.application is not None and intention.view.is_recoverable:
            by_application.setdefault(intention.view.application, []).append(intention.view.transactional_id)
    for application, names in by_application.items():
        with DualWrite(engine, kafka, application=application, pool_size=_POOL_SIZE, two_phase=two_phase) as dual_write:
            outcomes, errors = manager_of(dual_write).sweep(names)
        resolution.outcomes.update(sorted(outcomes.items()))
        resolution.errors += errors
        resolution.missed += [name for name in names if name not in outcomes]
    return resolution


def recover(
    engine: Engine, kafka: Mapping[str, Any], application: str, *, two_phase: TwoPhase = "keep-prepared"
) -> Resolution:
    """Recover every slot of ``application`` that no process holds, like DualWrite.recover(). Holds no slot afterwards,
    and waits for no lease: see Resolution.in_use.

    Slots with open work in another Kafka cluster stay unchanged, and those under whose name another database has a
    transaction open in this one; the errors then contain a ForeignClusterError.

    :param two_phase: the application's own mode, as for DualWrite.
    :raises InputError: if the application has no slot in this database: most likely its name is misspelled.
    """
    require_application(engine, application)
    left = _opened_by_another(engine, kafka, application)
    only = [name for name in state_rows(engine, application=application) if name not in left] if left else None
    with DualWrite(engine, kafka, application=application, pool_size=_POOL_SIZE, two_phase=two_phase) as dual_write:
        outcomes, errors = manager_of(dual_write).sweep(only)
    errors = [*errors, *(ForeignClusterError(f"slot {name}: {reason}") for name, reason in left.items())]
    foreign = _foreign_cluster_message(engine, kafka, application)
    if foreign:
        errors = [*errors, ForeignClusterError(foreign)]
    return _with_the_rest(engine, kafka, application, Resolution(dict(sorted(outcomes.items())), errors=errors))


def _with_the_rest(engine: Engine, kafka: Mapping[str, Any], application: str, done: Resolution) -> Resolution:
    """``done`` with the open transactions that recovery has left: their owner may be alive, or their row is locked."""
    rows = state_rows(engine, application=application)
    if all(row.status is not SlotStatus.HELD and name in done.outcomes for name, row in rows.items()):
        return done
    for view in list_transactions(engine, kafka, application=application, foretells=False):
        if view.situation is Situation.AT_WORK:
            done.in_use[view.transactional_id] = held_by(view)
        elif view.row is not None and view.row.is_locked:
            done.missed.append(view.transactional_id)
    return done


def unknown_application(engine: Engine, application: str) -> str:
    """The message that ``application`` has no slot in the database, and which ones have; empty if it has a slot."""
    if state_rows(engine, application=application):
        return ""
    others = applications(engine)
    advice = f"those that have: {named(others)}" if others else "no application has"
    return f"application {application!r} has no slot in this database; {advice}"


def require_application(engine: Engine, application: str) -> None:
    """Require that ``application`` has a slot in the database.

    :raises InputError: if not: most likely its name is misspelled. The message names the applications that have slots.
    """
    message = unknown_application(engine, application)
    if message:
        raise InputError(message)


def _opened_by_another(engine: Engine, kafka: Mapping[str, Any], application: str) -> dict[str, str]:
    """The slots that recovery must leave alone (:func:`opened_by_another`), each with the reason."""
    with inspector(kafka) as cluster:
        here = cluster.cluster_id()
        rows = state_rows(engine, application=application)
        names = [name for name, row in rows.items() if is_another(row.slot.cluster_id, here)]
        views = views_of(engine, cluster, names) if names else {}
    return {name: reason for name, view in views.items() if (reason := opened_by_another(view))}


def _foreign_cluster_message(engine: Engine, kafka: Mapping[str, Any], application: str) -> str:
    """The message about slots with open work in another Kafka cluster; empty if there are none."""
    if all(row.status not in ENDED for row in state_rows(engine, application=application).values()):
        return ""
    with inspector(kafka) as cluster:
        here = cluster.cluster_id()
    rows = state_rows(engine, application=application, cluster_id=here).values()
    foreign = [row.slot for row in rows if row.status is SlotStatus.FOREIGN]
    return left_in_another_cluster(foreign, here) if foreign else ""


def applications(engine: Engine) -> list[str]:
    """The applications that have slots in the database."""
    names = (TransactionView(name, row, None).application for name, row in state_rows(engine).items())
    return sorted({name for name in names if name is not None})
