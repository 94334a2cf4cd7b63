"""The users of a running broker, through confluent-kafka's AdminClient (KIP-554)."""

from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from dualwrite.broker.access.scram_credentials import ScramHash
from dualwrite.broker.core.credential_changes import CredentialResult, DescribedUser
from dualwrite.errors import ConfigurationError, KafkaUnavailableError
from dualwrite.wire.error_codes import ErrorCode

REQUEST_SECONDS = 15.0
_POLL_SECONDS = 0.05
_REFUSALS = (KafkaError._AUTHENTICATION, KafkaError._SSL)

_MECHANISMS = {
    ScramHash.SHA_256: ScramMechanism.SCRAM_SHA_256,
    ScramHash.SHA_512: ScramMechanism.SCRAM_SHA_512,
}


class ClusterUsers:
    """The users of the cluster that ``config`` reaches. The password is salted here: the broker never gets it.

    :raises ConfigurationError: if librdkafka refuses a setting.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._servers = config["bootstrap.servers"]
        self._connection_error: KafkaError | None = None
        client_config: dict[str, Any] = {**config, "error_cb": self._note, "log_level": 0}
        try:
            self._client = AdminClient(client_config)
        except KafkaException as error:
            raise ConfigurationError(f"librdkafka: {error.args[0].str()}") from None

    def describe(self) -> list[DescribedUser]:
        """All users with their credentials."""
        described = self._wait_for(self._client.describe_user_scram_credentials(request_timeout=REQUEST_SECONDS))
        return [
            DescribedUser(
                name,
                tuple(
                    (ScramHash(info.mechanism.value), info.iterations) for info in description.scram_credential_infos
                ),
            )
            for name, description in described.items()
        ]

    def put(self, user: str, scrams: Sequence[ScramHash], iterations: int, password: bytes) -> list[CredentialResult]:
        """Set the credentials of ``user`` for ``scrams``, each in a request of its own, as KIP-554 wants."""
        return self._alter(
            [
                UserScramCredentialUpsertion(user, ScramCredentialInfo(_MECHANISMS[scram], iterations), password)
                for scram in scrams
            ]
        )

    def delete(self, user: str, scrams: Sequence[ScramHash]) -> list[CredentialResult]:
        """Delete the credentials of ``user`` for ``scrams``."""
        return self._alter([UserScramCredentialDeletion(user, _MECHANISMS[scram]) for scram in scrams])

    def _alter(self, changes: Sequence[UserScramCredentialAlteration]) -> list[CredentialResult]:
        results = []
        for change in changes:
            (future,) = self._client.alter_user_scram_credentials([change], request_timeout=REQUEST_SECONDS).values()
            results.append(self._result(change.user, future))
        return results

    def _result(self, user: str, future: Any) -> CredentialResult:
        try:
            self._wait_for(future)
        except KafkaException as error:
            return CredentialResult(user, ErrorCode(error.args[0].code()), error.args[0].str())
        return CredentialResult(user)

    def _wait_for(self, future: Any) -> Any:
        """The result of ``future``.

        :raises KafkaException: if the broker refuses.
        :raises KafkaUnavailableError: if no broker answers, or the client may not connect.
        """
        while not future.done() and not self._is_refused:
            self._client.poll(_POLL_SECONDS)  # calls error_cb
        try:
            if not self._is_refused:
                return future.result()
            reason = self._connection_error
        except KafkaException as error:
            reason = error.args[0]
            if reason.code() in set(ErrorCode):
                raise
        assert reason is not None, "a refused client has a reason"
        raise KafkaUnavailableError(f"{self._servers}: {(self._connection_error or reason).str()}")

    @property
    def _is_refused(self) -> bool:
        """True if the client will never be able to connect."""
        return self._connection_error is not None and self._connection_error.code() in _REFUSALS

    def _note(self, error: KafkaError) -> None:
        """Keep the most telling error: that of an authentication rather than that no broker is left."""
        if self._connection_error is None or error.code() in _REFUSALS:
            self._connection_error = error
