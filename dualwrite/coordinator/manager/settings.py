"""The arguments of DualWrite and AsyncDualWrite, checked."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from dualwrite.coordinator.ports.kafka import KafkaParticipant
from dualwrite.coordinator.rules.producer_names import LIBRDKAFKA, ProducerName
from dualwrite.coordinator.rules.slot_rules import slot_id
from dualwrite.coordinator.rules.two_phase import RESUME, TwoPhase, completed_config, require_mode
from dualwrite.coordinator.slots.usage import PoolSettings
from dualwrite.coordinator.unit.serializers import Serializers, serializers_of
from dualwrite.coordinator.unit.session_factory import UnitSessions
from dualwrite.errors import ConfigurationError

Completion = Literal["await", "background"]
AWAIT, BACKGROUND = "await", "background"
COMPLETIONS = (AWAIT, BACKGROUND)
NEEDS_NATIVE = (
    'completion="background" needs the native producer, and this one is {}: librdkafka and participants of your own '
    'wait for the answer to each commit; use completion="await"'
)
"""The message of a ConfigurationError; takes the producer."""


@dataclass(frozen=True)
class ManagerSettings:
    """DualWrite's arguments but its engine; see DualWrite for each.

    :raises ConfigurationError: if a setting is missing or wrong, or is reserved for the library.
    """

    kafka: Mapping[str, Any] = field(repr=False)
    """It may hold passwords."""
    pool: PoolSettings
    producer: ProducerName | None
    two_phase: TwoPhase
    replay: bool
    schema: str | None
    participant: Callable[[Mapping[str, Any]], KafkaParticipant] | None
    observe: Callable[[str], None]
    """``on_step``."""
    completion: Completion = "await"
    sessions: UnitSessions = UnitSessions()  # noqa: RUF009 - immutable
    """From ``session_factory``."""
    serializers: Serializers | None = field(init=False, default=None)
    """Those in ``kafka``, which has none then."""

    def __post_init__(self) -> None:
        self.pool.check()
        if self.producer is not None and self.participant is not None:
            raise ConfigurationError(f"producer {self.producer!r} and a participant of your own: give one of the two")
        require_mode(self.two_phase, replay=self.replay)
        self._require_completion()
        serializers, kafka = serializers_of(completed_config(self.kafka, self.two_phase))
        object.__setattr__(self, "serializers", serializers)
        object.__setattr__(self, "kafka", {**kafka, "transactional.id": slot_id(self.application, 0)})

    @property
    def application(self) -> str:
        """The application's name."""
        return self.pool.application

    def _require_completion(self) -> None:
        if self.completion not in COMPLETIONS:
            raise ConfigurationError(f"completion {self.completion!r}: use {' or '.join(map(repr, COMPLETIONS))}")
        if self.sends_commit and self.producer == LIBRDKAFKA:
            raise ConfigurationError(NEEDS_NATIVE.format("librdkafka"))
        if self.sends_commit and self.replay:
            raise ConfigurationError(
                'completion="background" and replay=True: the records of a unit are kept for a replay until Kafka has '
                'committed them, so wait for that: completion="await"'
            )

    @property
    def sends_commit(self) -> bool:
        """True if a unit of work does not wait for the answer to Kafka's commit."""
        return self.completion == BACKGROUND

    @property
    def checks_lease(self) -> bool:
        """True if each unit of work must check at its beginning that its lease is valid."""
        return self.two_phase == RESUME
