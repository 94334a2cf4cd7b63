"""The broker's settings, under Apache Kafka's names; ``--config key=value`` on the command line."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from dualwrite.broker.core.broker_settings import SETTINGS, WILDCARDS, advertised_address
from dualwrite.broker.core.group_rules import GroupSettings
from dualwrite.broker.core.settings import SettingError
from dualwrite.broker.core.topic_configs import broker_defaults, check_topic_config
from dualwrite.broker.core.topic_settings import TOPIC_SETTINGS
from dualwrite.broker.core.transaction_rules import TransactionSettings
from dualwrite.broker.runtime.cluster import TopicSettings
from dualwrite.broker.runtime.compaction import CleanerSettings
from dualwrite.broker.runtime.offsets import OffsetSettings
from dualwrite.errors import ConfigurationError

DURABILITIES = ("fsync", "os")
_OPTIONS = {"log.dir": "--data-dir", "log.dirs": "--data-dir", "listeners": "--listen"}
_LIST = "dualwrite broker --list-config"


def _unknown(key: str) -> str:
    """The error message for an unknown setting."""
    if key in _OPTIONS:
        return f"unknown broker setting {key!r}: the option {_OPTIONS[key]} says that"
    topics = TOPIC_SETTINGS.get(key)
    if topics is not None and topics.broker:
        return f"unknown broker setting {key!r}: topics have it; their default is the broker's {topics.broker[0].name}"
    close = get_close_matches(key, SETTINGS, n=3)
    meant = f"; did you mean {', '.join(close)}?" if close else ";"
    return f"unknown broker setting {key!r}{meant} {_LIST} lists all"


@dataclass(frozen=True)
class BrokerOptions:
    """How to run a broker.

    :param data_dir: the directory for all data; made if it is missing.
    :param host: the address to listen on, and the address for clients unless advertised.listeners sets another.
    :param port: 0 picks a free one.
    :param durability: ``fsync``: acknowledge only what is on disk. ``os``: acknowledge what the operating system has.
    :param config: settings by Kafka's names, as text; the others have their defaults.
    :param ready_file: written once connections are accepted; its first line is HOST:PORT.
    :param metrics: the address for Prometheus, or None; port 0 picks a free one, which the log shows.
    :param embedded: the broker serves one process, which holds the other end of its stdin. It stops when that process
        is gone, and waits briefly for the broker of a predecessor that has just gone.
    :raises ConfigurationError: if a setting is unknown or its value is invalid.
    """

    data_dir: Path
    host: str = "127.0.0.1"
    port: int = 0
    durability: str = "fsync"
    config: Mapping[str, str] = field(default_factory=dict)
    ready_file: Path | None = None
    metrics: tuple[str, int] | None = None
    embedded: bool = False

    def __post_init__(self) -> None:
        if self.durability not in DURABILITIES:
            raise ConfigurationError(f"durability {self.durability!r}: use fsync or os")
        for key in self.config:
            if key not in SETTINGS:
                raise ConfigurationError(_unknown(key))
        for key in SETTINGS:
            self._value(key)
        self._refuse_contradictions()
        if self.host in WILDCARDS and self.advertised is None:
            raise ConfigurationError(
                f"listening on {self.host}: clients cannot connect to that; say what they can connect to: "
                "--config advertised.listeners=PLAINTEXT://HOST:PORT"
            )

    def number(self, key: str) -> int:
        """The value of a numeric setting."""
        value = self._value(key)
        assert isinstance(value, int)
        return value

    def is_on(self, key: str) -> bool:
        """The value of a switch."""
        return self._value(key) is True

    @property
    def advertised(self) -> tuple[str, int] | None:
        """Host and port for clients, if they differ from the address to listen on."""
        value = self._value("advertised.listeners")
        return advertised_address(value) if isinstance(value, list) else None

    @property
    def transactions(self) -> TransactionSettings:
        """The settings of the transaction coordinator."""
        return TransactionSettings(
            two_phase_commit_enable=self.is_on("transaction.two.phase.commit.enable"),
            max_timeout_ms=self.number("transaction.max.timeout.ms"),
            id_expiration_ms=self.number("transactional.id.expiration.ms"),
            log_segment_bytes=self.number("transaction.state.log.segment.bytes"),
            partition_verification_enable=self.is_on("transaction.partition.verification.enable"),
        )

    @property
    def cleaner(self) -> CleanerSettings:
        """The settings of compaction."""
        return CleanerSettings(self.is_on("log.cleaner.enable"), self.number("log.cleaner.dedupe.buffer.size"))

    @property
    def groups(self) -> GroupSettings:
        """The settings of the group coordinator."""
        return GroupSettings(
            min_session_timeout_ms=self.number("group.min.session.timeout.ms"),
            max_session_timeout_ms=self.number("group.max.session.timeout.ms"),
            initial_rebalance_delay_ms=self.number("group.initial.rebalance.delay.ms"),
            max_size=self.number("group.max.size"),
        )

    @property
    def offsets(self) -> OffsetSettings:
        """The settings of committed offsets."""
        return OffsetSettings(
            metadata_max_bytes=self.number("offset.metadata.max.bytes"),
            retention_minutes=self.number("offsets.retention.minutes"),
        )

    @property
    def topics(self) -> TopicSettings:
        """The default settings of topics."""
        return TopicSettings(
            num_partitions=self.number("num.partitions"),
            given=self.config,
        )

    def _refuse_contradictions(self) -> None:
        """Refuse settings under which no topic could be created, or no group be joined."""
        try:
            check_topic_config({}, broker_defaults(self.config))
        except SettingError as error:
            raise ConfigurationError(f"the broker's defaults for topics: {error}") from None
        least, most = "group.min.session.timeout.ms", "group.max.session.timeout.ms"
        if self.number(least) > self.number(most):
            raise ConfigurationError(
                f"broker setting {least}={self.number(least)}: no member could join, as {most} is {self.number(most)}"
            )

    def _value(self, key: str) -> object:
        setting = SETTINGS[key]
        text = self.config.get(key, setting.default)
        if text is None:
            return None
        try:
            return setting.value(text)
        except ValueError as error:
            raise ConfigurationError(f"broker setting {key}={text[:80]}: {error}") from None


def parse_listen(text: str, what: str = "listen address") -> tuple[str, int]:
    """HOST and PORT of ``HOST:PORT``, which an error calls ``what``; an IPv6 host stands in brackets.

    :raises ConfigurationError: if it does not have this form.
    """
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigurationError(f"{what} {text!r}: expected HOST:PORT, as 127.0.0.1:9092")
    return host, int(port)


def parse_config(pairs: Iterable[str]) -> dict[str, str]:
    """Settings given as ``key=value``.

    :raises ConfigurationError: if one has no ``=``, or is given twice.
    """
    config: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise ConfigurationError(f"broker setting {pair!r}: expected key=value")
        key = key.strip()
        if key in config:
            raise ConfigurationError(f"broker setting {key} is given twice: {config[key]!r} and {value.strip()!r}")
        config[key] = value.strip()
    return config
