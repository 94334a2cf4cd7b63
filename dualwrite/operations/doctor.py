"""The doctor: finds problems of dual writes with this database and this cluster before they occur.

It tries everything that can be tried without harm, and each finding has advice. If one side does not answer, the doctor
skips its remaining checks and continues with the others.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from dualwrite.coordinator.rules.slot_rules import SlotStatus, named
from dualwrite.coordinator.rules.two_phase import RESUME, TwoPhase, resume_timeout_ms
from dualwrite.coordinator.sql.dialects.supported import database_of
from dualwrite.coordinator.sql.outcome_store import outcomes
from dualwrite.errors import CopiedDatabaseError, DualWriteError
from dualwrite.operations import cluster_checks, database_checks
from dualwrite.operations.copies import reason_to_leave, require_no_copy
from dualwrite.operations.findings import Finding, Level, failure, ok, warning
from dualwrite.operations.groups import grouped_forecasts, grouped_records, unclear
from dualwrite.operations.listing import inspector, list_transactions
from dualwrite.operations.other_applications import check_other_applications
from dualwrite.operations.rows import state_rows
from dualwrite.operations.timeout_checks import CHECK, check_timeouts
from dualwrite.operations.views import Situation, foreign_cluster_message

ANSWER_SECONDS = 10.0
"""The timeout of a request to Kafka in seconds, for all attempts together."""

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
    """Yield the findings one by one.

    :param engine: created as in your application, so that its connection settings are checked (SQLite's
        ``synchronous``, a role).
    :param application: the application whose slots and permissions are checked; None for the database and the cluster
        alone.
    :param pool_size: the application's ``pool_size``, to find slots beyond it.
    :param two_phase: the application's ``two_phase``; with "resume", ``kafka`` may contain its
        ``transaction.timeout.ms``.
    :raises ConfigurationError: if a setting in ``kafka`` is malformed.
    """
    timeout = resume_timeout_ms(kafka)
    levels: list[Level] = []

    def noting(findings: Iterator[Finding]) -> Iterator[Finding]:
        for finding in findings:
            levels.append(finding.level)
            yield finding

    yield from noting(_database(engine))
    usable = Level.FAILURE not in levels
    levels.clear()
    yield from noting(_cluster(kafka, application, two_phase, timeout))
    if usable:
        yield from _guarded("identity", lambda: _identity(engine, kafka))
        yield from _guarded("outcomes", lambda: _outcomes(engine))
        if application is not None:
            yield from _guarded("slots", lambda: _slots(engine, application, pool_size))
        answers = Level.FAILURE not in levels
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
        identity = require_no_copy(engine, kafka)
    except CopiedDatabaseError as error:
        yield failure("identity", str(error), "dualwrite db moved --db URL --yes, or dualwrite db copied --db URL")
        return
    if identity.database_id is None:
        yield warning(
            "identity",
            "this database has no identity: a copy of it is not refused, and could abort its decided transactions",
            database_of(engine.dialect).how_to_identify,
        )
    else:
        yield ok("identity", "the state rows are this database's own")


def _outcomes(engine: Engine) -> Iterator[Finding]:
    found = outcomes(engine)
    if found:
        unacknowledged = "1 heuristic outcome" if len(found) == 1 else f"{len(found):,} heuristic outcomes"
        groups = [f"{group.outcome.value} in {group.slots}" for group in grouped_records(found)]
        yield failure(
            "outcomes",
            f"{unacknowledged} not acknowledged: the two sides differ: {named(groups, _SHOWN)}",
            "see dualwrite transactions list, correct one side, and acknowledge them",
        )
    else:
        yield ok("outcomes", "no heuristic outcome waits to be acknowledged")


def _slots(engine: Engine, application: str, pool_size: int | None) -> Iterator[Finding]:
    rows = state_rows(engine, application=application)
    leased = [name for name, row in rows.items() if row.status is SlotStatus.HELD]
    yield ok("slots", f"{len(rows)} used so far, {len(leased)} leased now")
    if pool_size is None:
        return
    beyond = [name for name, row in rows.items() if row.slot.number >= pool_size]
    if beyond:
        yield warning(
            "slots",
            f"{named(beyond, _SHOWN)} beyond pool_size {pool_size}: used by processes with a larger one, now or before",
            "give all processes the same pool_size; slots among these that are free do no harm",
        )
    if len(leased) >= pool_size:
        yield warning(
            "slots",
            f"all {pool_size} are leased: another process would wait, and fail with NoFreeSlotError",
            "raise pool_size",
        )


def _transactions(engine: Engine, kafka: Mapping[str, Any], application: str | None) -> Iterator[Finding]:
    views = list_transactions(engine, kafka, application=application, foretells=not reason_to_leave(engine, kafka))
    left_open = [view.transactional_id for view in views if view.situation is Situation.LEFT_BEHIND]
    unknown = [view.transactional_id for view in views if view.situation is Situation.UNKNOWN]
    if left_open:
        yield warning(
            "transactions",
            f"{named(left_open, _SHOWN)} left open by dead processes: read_committed consumers wait behind them",
            "start the application, or run dualwrite recover",
        )
    if unknown and application is not None:
        yield warning(
            "transactions",
            f"{named(unknown, _SHOWN)} open, with names of slots of {application}, but this database has no row for "
            "them",
            "check whether another database is in use under the same application name, or this one was restored",
        )
    foreign = foreign_cluster_message(views)
    if foreign:
        yield failure("transactions", foreign)
    foretold = grouped_forecasts(views)
    for group in foretold:
        yield failure(
            "transactions",
            f"recovery would find a {group.outcome.value} in {group.slots}: {group.detail}",
            "make sure that these are the right database and the right cluster; then run dualwrite recover, which puts "
            "it on record",
        )
    doubtful = unclear(view for view in views if view.situation is not Situation.ENDING)
    for reason, names in doubtful.items():
        yield warning(
            "transactions",
            f"what recovery would find is unclear in {named(names, _SHOWN)}: {reason}",
            "see dualwrite transactions list",
        )
    elsewhere = [view.transactional_id for view in views if view.situation is Situation.AT_WORK_ELSEWHERE]
    if elsewhere:
        yield warning(
            "transactions",
            f"{named(elsewhere, _SHOWN)} leased by processes that use another Kafka cluster than this one",
            "give all processes of an application the same cluster; dualwrite transactions describe names the other",
        )
    if not any((left_open, unknown, foreign, foretold, doubtful, elsewhere)):
        yield ok("transactions", "nothing is left open")


def _guarded(name: str, check: Check) -> Iterator[Finding]:
    """The findings of ``check``; an error of the check becomes a finding."""
    try:
        yield from check()
    except DualWriteError as error:
        yield failure(name, str(error))
    except SQLAlchemyError as error:
        yield failure(name, str(getattr(error, "orig", None) or error).strip().partition("\n")[0])
