"""The command lines that do the same as the console's actions, to copy."""

from collections.abc import Mapping, Sequence
from shlex import quote
from typing import Any

from sqlalchemy import Engine

from dualwrite.client.config.reading import BOOTSTRAP_KEY
from dualwrite.coordinator.rules.two_phase import KEEP_PREPARED, TwoPhase
from dualwrite.coordinator.sql.engine.shown_url import shown_url
from dualwrite.coordinator.sql.own_tables import chosen_schema

MOST_TARGETS = 500
"""The most transactional ids or outcomes in one action, and in its command line."""


class Commands:
    """Command lines on one database and one cluster. They contain no password: settings other than the address are
    named as a file."""

    def __init__(self, engine: Engine, kafka: Mapping[str, Any], two_phase: TwoPhase = "keep-prepared") -> None:
        self._two_phase = "" if two_phase == KEEP_PREPARED else f" --two-phase {two_phase}"
        self._database = shown_url(engine.url, chosen_schema(engine.get_execution_options()))
        self._cluster = f"--bootstrap-servers {quote(str(kafka.get(BOOTSTRAP_KEY, 'HOST:PORT')))}"
        if set(kafka) - {BOOTSTRAP_KEY}:
            self._cluster += " --command-config FILE"

    def resolve(self, transactional_ids: Sequence[str]) -> str:
        """End what dead owners left, as the database decided."""
        return self._about("resolve", transactional_ids[:MOST_TARGETS], self._two_phase)

    def terminate(self, transactional_id: str, by: str = "NAME") -> str:
        """Abort a transaction in Kafka, regardless of the decision."""
        return self._about("terminate", [transactional_id], f" --by {quote(by)}")

    def acknowledge(self, numbers: Sequence[int], by: str = "NAME") -> str:
        """Record that an operator has dealt with heuristic outcomes."""
        shown = " ".join(map(str, numbers[:MOST_TARGETS]))
        return f"dualwrite transactions acknowledge {shown} --by {quote(by)} {self._database}"

    def doctor(self) -> str:
        """Examine both sides."""
        return f"dualwrite doctor{self._two_phase} {self._cluster} {self._database}"

    def _about(self, action: str, names: Sequence[str], option: str = "") -> str:
        quoted = " ".join(map(quote, names))
        command = f"dualwrite transactions {action}"
        if any(name.startswith("-") for name in names):  # the names come last, or each would be an option
            database, gap, advice = self._database.partition(" (with ")
            return f"{command} --yes{option} {self._cluster} {database} -- {quoted}{gap}{advice}"
        return f"{command} {quoted} --yes{option} {self._cluster} {self._database}"
