"""The audit log: one line for each administrative act, by a logger of its own, so that it can go elsewhere."""

import logging
from collections.abc import Iterable, Iterator

from dualwrite.broker.api.auditing.act import Act
from dualwrite.broker.api.context import Client
from dualwrite.broker.api.turns import in_turns
from dualwrite.broker.clients.shown_text import clipped
from dualwrite.wire.error_codes import error_name

AUDIT_LOGGER = "dualwrite.broker.audit"
_logger = logging.getLogger(AUDIT_LOGGER)
_MOST_NAMES = 10
"""The most names in the line of refused acts. A client without rights must not fill the disk with names."""


async def audit(acts: Iterable[Act], client: Client) -> None:
    """Log ``acts`` of ``client``. Acts that were refused for the same reason are one line. Other tasks get turns."""
    async for act in in_turns(_joined(acts)):
        log_act(act, client)


def log_act(act: Act, client: Client) -> None:
    """Log one act of ``client``. The record's attribute ``fields`` has what a line of JSON shows."""
    fields = {
        "principal": clipped(client.principal),
        "address": client.host.removeprefix("/"),
        "client_id": clipped(client.client_id),
        "action": act.action,
        "resource_type": act.resource_type,
        "resource": clipped(act.resource),
        "outcome": error_name(act.outcome),
        "detail": clipped(act.detail) if act.outcome else act.detail,
    }
    level = logging.WARNING if act.outcome else logging.INFO
    _logger.log(level, "%s", " ".join(f"{name}={text!r}" for name, text in fields.items()), extra={"fields": fields})


def _joined(acts: Iterable[Act]) -> Iterator[Act]:
    refused: dict[tuple[str, str, int], list[Act]] = {}
    for act in acts:
        if act.outcome:
            refused.setdefault((act.action, act.resource_type, act.outcome), []).append(act)
        else:
            yield act
    for (action, kind, outcome), alike in refused.items():
        names = [act.resource for act in alike[:_MOST_NAMES]]
        left_out = len(alike) - len(names)
        more = f" and {left_out} more" if left_out else ""
        detail = alike[0].detail if len(alike) == 1 else ""
        yield Act(action, kind, ", ".join(names) + more, outcome, detail)
