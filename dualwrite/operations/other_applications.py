"""The doctor's look at applications that no process recovers: after a crash they were renamed, or removed.

Their slots were not given back, and none of their slots is leased. Their open Kafka transactions hold up
read_committed consumers, and no other application may end those transactions.
"""

from collections.abc import Iterator, Mapping
from shlex import quote
from typing import Any

from sqlalchemy import Engine

from dualwrite.coordinator.rules.slot_rules import AbandonedApplication, abandoned_applications, application_option
from dualwrite.coordinator.rules.two_phase import RESUME, TwoPhase
from dualwrite.coordinator.slots.usage import described
from dualwrite.coordinator.sql.engine.shown_url import command_on
from dualwrite.errors import KafkaRefusedError
from dualwrite.operations.findings import Finding, warning
from dualwrite.operations.listing import inspector, views_of
from dualwrite.operations.rows import OBSERVER, state_rows
from dualwrite.operations.views import foreign_cluster_message

_SECURITY = ("security.", "sasl.", "ssl.")
"""Where the names of settings begin that a command on a secured cluster needs, too."""
_SHOWN = 5
"""Partitions that a finding names."""


def others_without_owners(engine: Engine, application: str | None) -> list[AbandonedApplication]:
    """The applications that no process recovers, apart from ``application``, with the slots that they left behind."""
    rows = state_rows(engine)
    return abandoned_applications((row.slot for row in rows.values()), OBSERVER, apart_from=application)


def check_other_applications(
    engine: Engine, kafka: Mapping[str, Any] | None, application: str | None, two_phase: TwoPhase, timeout: float
) -> Iterator[Finding]:
    """A finding for each application that no process recovers, apart from ``application``; none if there is none.

    :param kafka: configuration, to find what each application holds up; None if Kafka is not available.
    :param two_phase: the mode of these applications, as far as known.
    :param timeout: seconds for Kafka's answer.
    """
    options = f" --two-phase {RESUME}" if two_phase == RESUME else ""
    config = kafka or {}
    servers = f" --bootstrap-servers {quote(str(config.get('bootstrap.servers', 'HOST:PORT')))}"
    if any(key.startswith(_SECURITY) for key in config):
        servers += " --command-config FILE"
    for abandoned in others_without_owners(engine, application):
        held_up = "unknown, because a check of the cluster failed"
        if kafka is not None:
            held_up = _held_up(engine, kafka, abandoned, timeout)
        yield warning(
            "other applications",
            f"{described(abandoned)}, and no process recovers them; held up: {held_up}",
            "start that application; or, if it was renamed or removed, run "
            + command_on(engine, f"recover {application_option(abandoned.application)}{options}{servers}"),
        )


def _held_up(engine: Engine, kafka: Mapping[str, Any], abandoned: AbandonedApplication, timeout: float) -> str:
    """The partitions in which ``abandoned`` has transactions open; or that this client may not see them."""
    try:
        with inspector(kafka, timeout) as cluster:
            views = views_of(engine, cluster, abandoned.transactional_ids).values()
    except KafkaRefusedError as error:
        return f"unknown: {error}"
    foreign = foreign_cluster_message(views)
    if foreign:
        return f"not here: {foreign}"
    waiting = [view.kafka for view in views if view.kafka is not None and view.kafka.waits]
    partitions = sorted({str(partition) for transaction in waiting for partition in transaction.partitions})
    if not partitions:
        return "no partition that is known"
    more = f" and {len(partitions) - _SHOWN} more" if len(partitions) > _SHOWN else ""
    return f"read_committed consumers of {', '.join(partitions[:_SHOWN])}{more}"
