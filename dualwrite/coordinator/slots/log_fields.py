"""The fields of the coordinator's log lines, for formatters that write JSON and for filters: see docs/operations.md.

A line begins with its subject: ``_LOG.info("%s: …", transactional_id, …)``; the filter makes the field from that
argument. Lines about an application, or with more fields, use ``extra``.
"""

import logging

from dualwrite.coordinator.rules.slot_rules import application_of

FIELDS = ("transactional_id", "application", "step", "state", "outcome", "error")
"""Every record has all of these fields; None if a field does not apply."""

_ABOUT = "%s: "


class Fields(logging.Filter):
    """Adds missing FIELDS to each record of a logger. It drops no record."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Fill in the fields from the message's arguments."""
        known = record.__dict__
        arguments = record.args if isinstance(record.args, tuple) else ()
        if "transactional_id" not in known and "application" not in known:
            is_about = str(record.msg).startswith(_ABOUT) and arguments and isinstance(arguments[0], str)
            known["transactional_id"] = arguments[0] if is_about else None
        if "application" not in known:
            known["application"] = _application(known["transactional_id"])
        if "error" not in known:
            raised = record.exc_info[1] if record.exc_info else None
            errors = [value for value in (raised, *arguments) if isinstance(value, BaseException)]
            known["error"] = type(errors[0]).__qualname__ if errors else None
        for field in FIELDS:
            known.setdefault(field, None)
        return True


def _application(transactional_id: str | None) -> str | None:
    """The application of the slot; None if it is not known."""
    return None if transactional_id is None else application_of(transactional_id)
