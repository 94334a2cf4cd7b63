"""The doctor: finds problems of dual writes with this database and this cluster before they occur.

It tries everything that can be tried without harm, and each finding says what to do. If one part does not answer, its
remaining checks are skipped; the other parts go on.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from dualwrite.coordinator.recovery.two_phase import RESUME, TwoPhase, timeout_ms
from dualwrite.coordinator.rules.slot_rules import SlotStanding
from dualwrite.coordinator.sql.identity_rows import WHAT_TO_GRANT
from dualwrite.coordinator.sql.outcome_store import outcomes
from dualwrite.errors import CopiedDatabaseError, DualWriteError
from dualwrite.operations import cluster_checks, database_checks
from dualwrite.operations.copies import require_no_copy
from dualwrite.operations.findings import Finding, Level, failure, ok, warning
from dualwrite.operations.listing import inspector, list_transactions
from dualwrite.operations.other_applications import check_other_applications
from dualwrite.operations.rows import state_rows
from dualwrite.operations.timeout_checks import CHECK, check_timeouts
from dualwrite.operations.views import Situation, said_of_foreign

ANSWER_SECONDS = 10.0
"""Timeout in seconds of a request to Kafka, all attempts together."""

_SHOWN = 5
"""The most names in a finding."""

Check = Callable[[], Iterator[Finding]]


def examine(
    engine: Engine,
    kafka: Mapping[str, Any],
    *,
    application: str | None = None,
    pool_size: int | None = None,
    two_phase: TwoPhase = "keep-prepared",
) -> Iterator[Finding]:
    """Yield the findings one by one, as they are made.

    Pass an engine made as in your application: then its connection settings (SQLite's ``synchronous``, a role) are
    checked.

    :param application: the application whose slots and permissions are checked; without it only database and cluster.
    :param pool_size: as given to DualWrite, to find slots beyond it.
    :param two_phase: as given to DualWrite; with "resume", ``kafka`` may contain its ``transaction.timeout.ms``.
    :raises ConfigurationError: if a setting in ``kafka`` is malformed.
    """
    timeout = timeout_ms(kafka)
    seen: list[Level] = []

    def note(findings: Iterator[Finding]) -> Iterator[Finding]:
        for finding in findings:
            seen.append(finding.level)
            yield finding

    yield from note(_database(engine))
    usable = Level.FAILURE not in seen
    seen.clear()
    yield from note(_cluster(kafka, application, two_phase, timeout))
    if usable:
        yield from _guarded("identity", lambda: _identity(engine, kafka))
        yield from _guarded("outcomes", lambda: _outcomes(engine))
        if application is not None:
            yield from _guarded("slots", lambda: _slots(engine, application, pool_size))
        answers = Level.FAILURE not in seen
        yield from _guarded(
            "other applications",
            lambda: check_other_applications(
                engine, kafka if answers else None, application, two_phase, ANSWER_SECONDS
            ),
        )
        if answers:
            yield from _guarded("transactions", lambda: _transactions(engine, kafka, application))


def _database(engine: Engine) -> Iterator[Finding]:
    checks = (
        ("database", database_checks.check_server),
        ("schema", database_checks.check_schema),
        ("permissions", database_checks.check_permissions),
        ("transactions", database_checks.check_transactions),
        ("clock", database_checks.check_clock),
        (CHECK, check_timeouts),
    )
    for name, check in checks:
        findings = list(_guarded(name, lambda check=check: check(engine)))  # type: ignore[misc]
        yield from findings
        if name in ("database", "schema") and any(finding.level is Level.FAILURE for finding in findings):
            return


def _cluster(kafka: Mapping[str, Any], application: str | None, two_phase: TwoPhase, timeout: int) -> Iterator[Finding]:
    with inspector(kafka, ANSWER_SECONDS) as cluster:
        findings = list(_guarded("kafka", lambda: cluster_checks.check_protocol(cluster)))
        yield from findings
        if any(finding.check == "kafka" for finding in findings):
            return
        yield from _guarded("keep-prepared", lambda: cluster_checks.check_keeping(cluster, two_phase))
        yield from _guarded("broker settings", lambda: cluster_checks.check_settings(cluster, two_phase, timeout))
        if application is not None and two_phase != RESUME:
            yield from _guarded("two-phase commit", lambda: cluster_checks.check_two_phase_commit(cluster, application))


def _identity(engine: Engine, kafka: Mapping[str, Any]) -> Iterator[Finding]:
    try:
        here = require_no_copy(engine, kafka)
    except CopiedDatabaseError as error:
        yield failure("identity", str(error), "dualwrite db moved --db URL --yes, or dualwrite db copied --db URL")
        return
    if here.database_id is None:
        yield warning(
            "identity",
            "this database does not say which it is: a copy of it would abort what it has decided, and is not refused",
            WHAT_TO_GRANT,
        )
    else:
        yield ok("identity", "the state rows are this database's own")


def _outcomes(engine: Engine) -> Iterator[Finding]:
    count = len(outcomes(engine))
    if count:
        what = "1 heuristic outcome" if count == 1 else f"{count} heuristic outcomes"
        yield warning(
            "outcomes",
            f"{what} that nobody has acknowledged: not equal on both sides",
            "see dualwrite transactions list, set both sides right, and acknowledge them",
        )
    else:
        yield ok("outcomes", "no heuristic outcome waits for anybody")


def _slots(engine: Engine, application: str, pool_size: int | None) -> Iterator[Finding]:
    rows = state_rows(engine, application=application)
    held = [name for name, row in rows.items() if row.standing is SlotStanding.HELD]
    yield ok("slots", f"{len(rows)} used so far, {len(held)} leased now")
    if pool_size is None:
        return
    beyond = [name for name, row in rows.items() if row.slot.number >= pool_size]
    if beyond:
        yield warning(
            "slots",
            f"{_named(beyond)} beyond pool_size {pool_size}: of processes with a larger one, now or before",
            "give all processes the same pool_size; what is free among these is harmless",
        )
    if len(held) >= pool_size:
        yield warning(
            "slots",
            f"all {pool_size} are leased: another process would wait, and fail with NoFreeSlotError",
            "raise pool_size",
        )


def _transactions(engine: Engine, kafka: Mapping[str, Any], application: str | None) -> Iterator[Finding]:
    views = list_transactions(engine, kafka, application=application)
    left = [view.transactional_id for view in views if view.situation is Situation.LEFT_BEHIND]
    unknown = [view.transactional_id for view in views if view.situation is Situation.UNKNOWN]
    if left:
        yield warning(
            "transactions",
            f"{_named(left)} left open by processes that are gone: consumers with read_committed wait behind them",
            "start the application, or run dualwrite recover",
        )
    if unknown and application is not None:
        yield warning(
            "transactions",
            f"{_named(unknown)} open, called like slots of {application}, and this database has no row for them",
            "see whether another database is used under the same application name, or this one was restored",
        )
    foreign = said_of_foreign(views)
    if foreign:
        yield failure("transactions", foreign)
    if not left and not unknown and not foreign:
        yield ok("transactions", "nothing is left open")


def _named(names: list[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return f"{shown} and {len(names) - _SHOWN} more" if len(names) > _SHOWN else shown


def _guarded(name: str, check: Check) -> Iterator[Finding]:
    """The findings of ``check``; its error is a finding, too."""
    try:
        yield from check()
    except DualWriteError as error:
        yield failure(name, str(error))
    except SQLAlchemyError as error:
        yield failure(name, str(getattr(error, "orig", None) or error).strip().partition("\n")[0])
