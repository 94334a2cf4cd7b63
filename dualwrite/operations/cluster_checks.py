"""The doctor's checks of the cluster: the protocol that it supports, and whether it keeps prepared transactions."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from dualwrite.client.admin.inspector import Inspector
from dualwrite.client.config.reading import TIMEOUT_KEY, TWO_PHASE_KEY
from dualwrite.client.terms.versions import TRANSACTION_VERSION, TV2
from dualwrite.coordinator.rules.two_phase import KEEP_PREPARED, RESUME, TwoPhase
from dualwrite.errors import DualWriteError, KafkaRefusedError, TwoPhaseCommitUnavailableError
from dualwrite.ids import LIBRDKAFKA_TWO_PHASE_TIMEOUT_MS
from dualwrite.operations.findings import Finding, failure, ok, warning

TIMEOUT_SETTING = "transaction.max.timeout.ms"


def probe_id(application: str) -> str:
    """The transactional id of the probe. It has the prefix of the application's slots, so that prefixed ACLs apply, but
    is not the id of a slot."""
    return f"{application}-doctor"


def check_protocol(cluster: Inspector) -> Iterator[Finding]:
    """Check which producer can be used, and whether recovery can end a prepared transaction."""
    version = cluster.transaction_version()
    if version >= TV2:
        yield ok("protocol", f"{TRANSACTION_VERSION} {version}: the native producer can be used")
    else:
        yield warning(
            "protocol",
            f"{TRANSACTION_VERSION} {version}: librdkafka is used, and one epoch names many transactions",
            f"raise {TRANSACTION_VERSION} to {TV2} with kafka-features.sh",
        )


def check_keeping(cluster: Inspector, two_phase: TwoPhase) -> Iterator[Finding]:
    """Check whether the brokers keep prepared transactions, and whether the application relies on that."""
    keeps = cluster.supports_keep_prepared()
    if two_phase == RESUME and keeps:
        yield warning(
            "keep-prepared",
            "InitProducerId v6 (KIP-939) is offered: with it no prepared transaction times out",
            f"use two_phase={KEEP_PREPARED!r} once every process has stopped and recovered",
        )
    elif two_phase == RESUME:
        yield ok("keep-prepared", f"not offered, and not needed with two_phase={RESUME!r}")
    elif keeps:
        yield ok("keep-prepared", "InitProducerId v6 (KIP-939) is offered")
    else:
        yield failure(
            "keep-prepared",
            "the brokers do not offer InitProducerId v6 (KIP-939), so they cannot keep a prepared transaction",
            f"use the bundled broker, or two_phase={RESUME!r} if its weaker guarantee is enough (--two-phase {RESUME})",
        )


def check_settings(cluster: Inspector, two_phase: TwoPhase, timeout_ms: int) -> Iterator[Finding]:
    """Check the brokers' settings, as far as this client may read them.

    :param timeout_ms: the transaction.timeout.ms that the application's producers request.
    """
    try:
        brokers = cluster.broker_settings([TWO_PHASE_KEY, TIMEOUT_SETTING])
    except KafkaRefusedError as error:
        yield warning("broker settings", f"not readable: {error}", "grant DESCRIBE_CONFIGS on the cluster")
        return
    yield ok("brokers", f"{len(brokers)} answered")
    longest = [int(value) for settings in brokers.values() if (value := settings.get(TIMEOUT_SETTING)) is not None]
    if two_phase == RESUME:
        yield from _timeout_is_taken(longest, timeout_ms)
    else:
        yield from _two_phase_setting(brokers)
        yield from _longest_timeout(longest, cluster.transaction_version())


def check_two_phase_commit(cluster: Inspector, application: str) -> Iterator[Finding]:
    """Request two-phase commit under the doctor's own transactional id.

    A check without side effect is impossible: only the use of two-phase commit shows whether it is enabled, permitted
    and complete. So this initialises a transactional id without a producer, and keeps an open transaction. The id
    expires by itself (transactional.id.expiration.ms).
    """
    name = probe_id(application)
    try:
        cluster.init_producer_id(name, two_phase_commit=True, keep_prepared_txn=True)
    except TwoPhaseCommitUnavailableError as error:
        yield failure("two-phase commit", str(error), _advice(cluster, name))
    except KafkaRefusedError as error:
        yield failure("two-phase commit", str(error), f"grant WRITE and TWO_PHASE_COMMIT on {application}-*")
    else:
        yield ok("two-phase commit", f"enabled and permitted (asked as {name})")


def _advice(cluster: Inspector, name: str) -> str:
    """The advice after a refusal, which may have two reasons."""
    enabled: set[str | None] = set()
    with suppress(DualWriteError):  # without an answer the advice is only less precise
        brokers = cluster.broker_settings([TWO_PHASE_KEY]).values()
        enabled = {settings.get(TWO_PHASE_KEY) for settings in brokers}
    switch = f"set {TWO_PHASE_KEY}=true on every broker"
    grant = f"grant TWO_PHASE_COMMIT and WRITE on {name} and the slots beside it"
    if "false" in enabled:
        return switch
    return f"{TWO_PHASE_KEY} is true, so {grant}" if enabled == {"true"} else f"{switch}; or, if it is, {grant}"


def _two_phase_setting(brokers: Mapping[int, Mapping[str, str | None]]) -> Iterator[Finding]:
    off = [str(node) for node, settings in brokers.items() if settings.get(TWO_PHASE_KEY) == "false"]
    if off:
        yield failure(
            TWO_PHASE_KEY, f"it is false on broker {', '.join(off)}", "set it to true, and start the broker again"
        )
    elif all(settings.get(TWO_PHASE_KEY) == "true" for settings in brokers.values()):
        yield ok(TWO_PHASE_KEY, "true")


def _timeout_is_taken(longest: Sequence[int], timeout_ms: int) -> Iterator[Finding]:
    if not longest:
        return
    if min(longest) < timeout_ms:
        yield failure(
            TIMEOUT_SETTING,
            f"{min(longest)}, but the application requests {TIMEOUT_KEY} {timeout_ms} (INVALID_TRANSACTION_TIMEOUT)",
            "lower the one, or raise the other on every broker",
        )
    else:
        yield ok(TIMEOUT_SETTING, f"{min(longest)}: a prepared transaction times out after {TIMEOUT_KEY}, {timeout_ms}")


def _longest_timeout(longest: Sequence[int], version: int) -> Iterator[Finding]:
    if not longest:
        return
    lowest = min(longest)
    if version >= TV2 or lowest >= LIBRDKAFKA_TWO_PHASE_TIMEOUT_MS:
        yield ok(TIMEOUT_SETTING, f"{lowest}: it does not bound a transaction of two-phase commit")
    else:
        yield warning(
            TIMEOUT_SETTING,
            f"{lowest}: librdkafka, which is used here, asks for {LIBRDKAFKA_TWO_PHASE_TIMEOUT_MS}, and an Apache "
            "Kafka refuses that (INVALID_TRANSACTION_TIMEOUT)",
            f"set it to {LIBRDKAFKA_TWO_PHASE_TIMEOUT_MS}, or raise {TRANSACTION_VERSION} for the native producer",
        )
