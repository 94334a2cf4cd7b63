"""The choice of a DualWrite's producer: made once, at its first use, before any other request to Kafka.

The native producer needs a cluster with transaction version 2 (KIP-890 part 2), and knows fewer settings than
librdkafka. If the user has not chosen a producer, librdkafka is used where the native one cannot work.
"""

import logging
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from dualwrite.client.admin.control_plane import ControlPlane
from dualwrite.client.config.producer_settings import ProducerSettings
from dualwrite.client.config.reading import hint_for, is_two_phase
from dualwrite.client.terms.versions import TRANSACTION_VERSION, TV2
from dualwrite.coordinator.ports.kafka import KafkaParticipant
from dualwrite.coordinator.rules.producer_names import LIBRDKAFKA, NATIVE, PRODUCERS
from dualwrite.errors import ConfigurationError

PROBE_TIMEOUT = 30.0
"""Timeout in seconds of the request for the cluster's transaction version; delivery.timeout.ms if that is less."""

_UNKNOWN_SETTING = re.compile('No such configuration property: "(.*)"')
"""librdkafka's words."""

_LOG = logging.getLogger("dualwrite")


class ProducerChoice:
    """Makes participants, all of one kind. Thread-safe.

    :param config: the Kafka configuration, transactional.id included.
    :param requested: one of PRODUCERS; None for the native producer wherever it works.
    :raises ConfigurationError: if ``requested`` is none of PRODUCERS, or if the native producer is requested and
        refuses a setting.
    """

    def __init__(self, config: Mapping[str, Any], requested: str | None = None) -> None:
        if requested not in (None, *PRODUCERS):
            raise ConfigurationError(f"producer {requested!r}: use {' or '.join(map(repr, PRODUCERS))}")
        self.chosen: str | None = None
        """One of PRODUCERS; None before the choice."""
        self._config = config
        self._requested = requested
        self._choosing = threading.Lock()
        self._objection = "" if requested == LIBRDKAFKA else _refused_setting(config)
        if requested == NATIVE and self._objection:
            raise ConfigurationError(f'{self._objection}; or use producer="{LIBRDKAFKA}"')
        if requested == LIBRDKAFKA:
            self._choose(LIBRDKAFKA, "asked for")
        elif self._objection:
            self._choose(LIBRDKAFKA, self._objection)

    def participant(self, transactional_id: str) -> KafkaParticipant:
        """Make a participant of ``transactional_id``; the first call asks the cluster for its transaction version.

        :raises KafkaUnavailableError: if no broker answers; the choice is still open then.
        :raises ConfigurationError: if the native producer is requested and the cluster is too old for it.
        """
        if self.chosen is None:
            self._probe()
        config = {**self._config, "transactional.id": transactional_id}
        # Imported here: a program loads only its own producer. librdkafka alone takes as long as all the rest.
        if self.chosen == NATIVE:
            from dualwrite.coordinator.kafka.native import NativeProducer

            return NativeProducer(config)
        from dualwrite.coordinator.kafka.librdkafka import LibrdkafkaProducer

        with self._naming_setting():
            return LibrdkafkaProducer(config)

    def require_known_settings(self) -> None:
        """Refuse settings that no producer takes, without a request to Kafka.

        :raises ConfigurationError: naming the setting.
        """
        if self.chosen == LIBRDKAFKA:  # the native producer's are checked already
            from dualwrite.coordinator.kafka.librdkafka import require_valid_settings

            with self._naming_setting():
                require_valid_settings(self._config)

    @contextmanager
    def _naming_setting(self) -> Iterator[None]:
        """Let librdkafka's refusal name the setting as the user does, as librdkafka may know it by an alias; and the
        setting that an unknown one probably means."""
        try:
            yield
        except ConfigurationError as error:
            if self._objection:
                raise ConfigurationError(f"{error}; the native producer: {self._objection}") from error
            unknown = _UNKNOWN_SETTING.search(str(error))
            if unknown is None:
                raise
            raise ConfigurationError(f"{error}{hint_for(unknown[1])}") from error

    def _probe(self) -> None:
        control = ControlPlane(
            self._config, timeout=min(PROBE_TIMEOUT, ProducerSettings.of(self._config).delivery_timeout)
        )
        try:
            version, keeps = control.transaction_version(), control.supports_keep_prepared()
        finally:
            control.close()
        version_reason = f"the cluster's {TRANSACTION_VERSION} is {version}"
        if self._requested == NATIVE:
            if version < TV2:
                raise ConfigurationError(
                    f"{version_reason}, and the native producer needs {TV2} (KIP-890 part 2): use producer="
                    f'"{LIBRDKAFKA}", or raise it with kafka-features.sh'
                )
            self._choose(NATIVE, "asked for")
        elif version < TV2:
            self._choose(LIBRDKAFKA, version_reason)
        elif not keeps and is_two_phase(self._config):
            self._choose(LIBRDKAFKA, "the cluster does not offer KIP-939's InitProducerId")
        else:
            self._choose(NATIVE, version_reason)

    def _choose(self, name: str, reason: str) -> None:
        with self._choosing:
            if self.chosen is None:
                self.chosen = name
                _LOG.info("%s: the producer is %s: %s", self._config["transactional.id"], name, reason)


def _refused_setting(config: Mapping[str, Any]) -> str:
    """The reason why the native producer refuses ``config``; empty if it accepts it."""
    try:
        ProducerSettings.of(config)
    except ConfigurationError as error:
        return str(error)
    return ""
