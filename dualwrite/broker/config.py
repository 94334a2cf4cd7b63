"""The broker's settings, under Apache Kafka's names; ``--config key=value`` on the command line."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from dualwrite.broker.core.cluster import MAX_PARTITIONS
from dualwrite.broker.core.group_rules import GroupSettings
from dualwrite.broker.core.settings import ConfigType
from dualwrite.broker.core.topic_settings import TOPIC_SETTINGS, BrokerDefault, TopicConfigError, TopicSetting
from dualwrite.broker.core.transaction_rules import TransactionSettings
from dualwrite.broker.runtime.cluster import TopicSettings
from dualwrite.broker.runtime.compaction import CleanerSettings
from dualwrite.broker.runtime.offsets import OffsetSettings
from dualwrite.errors import ConfigurationError

_INT = 2**31 - 1
DURABILITIES = ("fsync", "os")
_WILDCARDS = ("0.0.0.0", "::")  # noqa: S104  named to be refused


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: its default, how its text is read, what that may be, and what it means."""

    default: str
    parse: Callable[[str], object]
    expects: str
    documentation: str

    @property
    def kind(self) -> ConfigType:
        """Its type, as clients are told it."""
        value = self.parse(self.default)
        if isinstance(value, bool):
            return ConfigType.BOOLEAN
        return ConfigType.LONG if isinstance(value, int) else ConfigType.STRING


def _boolean(text: str) -> bool:
    return {"true": True, "false": False}[text.lower()]


def _at_least(minimum: int, most: int = 2**63 - 1) -> Callable[[str], int]:
    def parse(text: str) -> int:
        value = int(text)
        if not minimum <= value <= most:
            raise ValueError(text)
        return value

    return parse


def _advertised(text: str) -> tuple[str, int] | None:
    if not text:
        return None
    protocol, _, address = text.partition("://")
    host, _, port = address.rpartition(":")
    if protocol != "PLAINTEXT" or not host or not 0 < int(port) <= 65535:
        raise ValueError(text)
    return host, int(port)


def _topic_default(name: str, setting: TopicSetting, source: BrokerDefault) -> Setting:
    """The broker's setting ``source``, which gives the topics' setting ``name`` its default. Of several with the same
    meaning the last has the default, and the others are empty unless they are set."""

    def parse(text: str) -> object:
        return setting.read(name, source.as_topics(text)) if text else None

    default = ""
    if source == setting.broker[-1]:
        default = setting.default if source.factor == 1 else str(int(setting.default) // source.factor)
    meaning = setting.documentation
    if source.factor != 1:
        meaning = f"{setting.broker[0].name} in {source.name.rpartition('.')[2]}, where that is not set."
    return Setting(default, parse, f"what {name} of a topic may be", meaning)


_SWITCH = "true or false"
_ONE_NODE = "1, as there is one node"
_ONE_PARTITION = "1: on one node more partitions would only mean more fsyncs"

SETTINGS: Mapping[str, Setting] = {
    **{
        source.name: _topic_default(name, setting, source)
        for name, setting in TOPIC_SETTINGS.items()
        for source in setting.broker
    },
    "advertised.listeners": Setting(
        "", _advertised, "PLAINTEXT://HOST:PORT",
        "Where clients are told to connect, if not to the address that is listened on."),
    "auto.create.topics.enable": Setting(
        "true", _boolean, _SWITCH,
        "Whether a topic that a client asks for or produces to is created."),
    "log.cleaner.backoff.ms": Setting(
        "15000", _at_least(1), "milliseconds",
        "How long compaction waits until it looks again for something to do."),
    "log.cleaner.dedupe.buffer.size": Setting(
        "134217728", _at_least(1024), "a size of at least 1024 bytes",
        "The memory in which a compaction remembers keys; a log with more is done in several passes."),
    "log.cleaner.enable": Setting(
        "true", _boolean, _SWITCH,
        "Whether logs are compacted."),
    "log.retention.check.interval.ms": Setting(
        "300000", _at_least(1), "milliseconds",
        "How long until the broker looks again for segments that retention removes."),
    "group.initial.rebalance.delay.ms": Setting(
        "3000", _at_least(0, _INT), "milliseconds",
        "How long the first member of an empty group waits for others; 0 in tests: it waits for nobody."),
    "group.max.session.timeout.ms": Setting(
        "1800000", _at_least(1, _INT), "milliseconds",
        "The longest session timeout that a member may ask for."),
    "group.max.size": Setting(
        "2147483647", _at_least(1, _INT), "a number of members",
        "The most members of a group."),
    "group.min.session.timeout.ms": Setting(
        "6000", _at_least(1, _INT), "milliseconds",
        "The shortest session timeout that a member may ask for."),
    "log.segment.bytes": Setting(
        "1073741824", _at_least(1024), "a size of at least 1024 bytes",
        "The size at which a segment is full, for topics that do not say."),
    "producer.id.expiration.check.interval.ms": Setting(
        "600000", _at_least(1), "milliseconds",
        "How long until the broker looks again for producers that it forgets."),
    "producer.id.expiration.ms": Setting(
        "86400000", _at_least(1), "milliseconds",
        "How long a partition remembers the last batches of a producer that is silent."),
    "num.partitions": Setting(
        "1", _at_least(1, MAX_PARTITIONS), f"a number from 1 to {MAX_PARTITIONS}",
        "The partitions of a topic that is created without saying how many."),
    "offset.metadata.max.bytes": Setting(
        "4096", _at_least(0, _INT), "a size in bytes",
        "The most text that may come with a committed offset."),
    "offsets.retention.check.interval.ms": Setting(
        "600000", _at_least(1), "milliseconds",
        "How long until the broker looks again for offsets that it forgets."),
    "offsets.retention.minutes": Setting(
        "10080", _at_least(1, _INT), "minutes",
        "How long the offsets of a group without members are kept."),
    "offsets.topic.num.partitions": Setting(
        "1", _at_least(1, 1), _ONE_PARTITION,
        "The partitions of __consumer_offsets."),
    "offsets.topic.replication.factor": Setting(
        "1", _at_least(1, 1), _ONE_NODE,
        "The replicas of __consumer_offsets."),
    "offsets.topic.segment.bytes": Setting(
        "4194304", _at_least(1024, 2**31 - 1), "a size of at least 1024 bytes",
        "The size at which a segment of __consumer_offsets is full."),
    "socket.request.max.bytes": Setting(
        "104857600", _at_least(1024), "a size of at least 1024 bytes",
        "The largest request; a connection that sends a larger one is closed."),
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": Setting(
        "10000", _at_least(1), "milliseconds",
        "How long until the broker looks again for transactions that have timed out."),
    "transaction.max.timeout.ms": Setting(
        "900000", _at_least(1), "milliseconds",
        "The longest transaction timeout that a producer may ask for."),
    "transaction.partition.verification.enable": Setting(
        "true", _boolean, _SWITCH,
        "Whether a partition that a transaction has not named refuses its records."),
    "transaction.remove.expired.transaction.cleanup.interval.ms": Setting(
        "3600000", _at_least(1), "milliseconds",
        "How long until the broker looks again for transactional ids that it forgets."),
    "transaction.state.log.min.isr": Setting(
        "1", _at_least(1, 1), _ONE_NODE,
        "The replicas of __transaction_state that a write waits for."),
    "transaction.state.log.num.partitions": Setting(
        "1", _at_least(1, 1), _ONE_PARTITION,
        "The partitions of __transaction_state."),
    "transaction.state.log.replication.factor": Setting(
        "1", _at_least(1, 1), _ONE_NODE,
        "The replicas of __transaction_state."),
    "transaction.state.log.segment.bytes": Setting(
        "4194304", _at_least(1024, 2**31 - 1), "a size of at least 1024 bytes",
        "The size at which a segment of __transaction_state is full."),
    "transaction.two.phase.commit.enable": Setting(
        "true", _boolean, _SWITCH,
        "Whether producers may ask for two-phase commit: transactions that never time out."),
    "transactional.id.expiration.ms": Setting(
        "604800000", _at_least(1), "milliseconds",
        "How long a transactional id that does nothing is remembered."),
}  # fmt: skip
"""Defaults are Kafka's, but for transaction.two.phase.commit.enable (docs/decisions/0004),
offsets.topic.segment.bytes and transaction.state.log.segment.bytes (0007), and what is 1 on one node."""


_OPTIONS = {"log.dir": "--data-dir", "log.dirs": "--data-dir", "listeners": "--listen"}
_PAGE = "docs/reference/settings.md"


def _unknown(key: str) -> str:
    """What to say of a setting that there is not."""
    if key in _OPTIONS:
        return f"unknown broker setting {key!r}: the option {_OPTIONS[key]} says that"
    topics = TOPIC_SETTINGS.get(key)
    if topics is not None and topics.broker:
        return f"unknown broker setting {key!r}: topics have it; their default is the broker's {topics.broker[0].name}"
    close = get_close_matches(key, SETTINGS, n=3)
    meant = f"; did you mean {', '.join(close)}?" if close else ";"
    return f"unknown broker setting {key!r}{meant} {_PAGE} lists all"


@dataclass(frozen=True)
class BrokerOptions:
    """How to run a broker.

    :param data_dir: where everything is kept; made if it is missing.
    :param host: the address to listen on, and (unless advertised.listeners says otherwise) the one that clients are
    told. :param port: 0 picks a free one.
    :param durability: ``fsync``: nothing is acknowledged before it is on disk. ``os``: before the system has taken it.
    :param config: settings by Kafka's names, as text; what is missing has its default.
    :param ready_file: written once connections are accepted; its first line is HOST:PORT.
    :param metrics: where to answer Prometheus, if at all; port 0 picks a free one, which the log tells.
    :param embedded: it serves one process, which holds the other end of its stdin: it stops when that process is gone,
        and waits a moment for the broker of a predecessor that is just gone.
    :raises ConfigurationError: if a setting is unknown or its value makes no sense.
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
        if self.host in _WILDCARDS and self.advertised is None:
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
        """Host and port that clients are told to connect to, if not those that are listened on."""
        value = self._value("advertised.listeners")
        return value if isinstance(value, tuple) else None

    @property
    def transactions(self) -> TransactionSettings:
        """What the transaction coordinator needs."""
        return TransactionSettings(
            two_phase_commit_enable=self.is_on("transaction.two.phase.commit.enable"),
            max_timeout_ms=self.number("transaction.max.timeout.ms"),
            id_expiration_ms=self.number("transactional.id.expiration.ms"),
            log_segment_bytes=self.number("transaction.state.log.segment.bytes"),
            partition_verification_enable=self.is_on("transaction.partition.verification.enable"),
        )

    @property
    def cleaner(self) -> CleanerSettings:
        """What compaction goes by."""
        return CleanerSettings(self.is_on("log.cleaner.enable"), self.number("log.cleaner.dedupe.buffer.size"))

    @property
    def groups(self) -> GroupSettings:
        """What the group coordinator needs."""
        return GroupSettings(
            min_session_timeout_ms=self.number("group.min.session.timeout.ms"),
            max_session_timeout_ms=self.number("group.max.session.timeout.ms"),
            initial_rebalance_delay_ms=self.number("group.initial.rebalance.delay.ms"),
            max_size=self.number("group.max.size"),
        )

    @property
    def offsets(self) -> OffsetSettings:
        """How committed offsets are kept."""
        return OffsetSettings(
            metadata_max_bytes=self.number("offset.metadata.max.bytes"),
            retention_minutes=self.number("offsets.retention.minutes"),
        )

    @property
    def topics(self) -> TopicSettings:
        """What topics have unless they say otherwise."""
        return TopicSettings(
            num_partitions=self.number("num.partitions"),
            given=self.config,
        )

    def _value(self, key: str) -> object:
        setting = SETTINGS[key]
        text = self.config.get(key, setting.default)
        try:
            return setting.parse(text)
        except TopicConfigError as error:
            raise ConfigurationError(f"broker setting {key}={text[:80]}: {error}") from None
        except (ValueError, KeyError):
            raise ConfigurationError(f"broker setting {key}={text}: expected {setting.expects}") from None


def parse_listen(text: str, what: str = "listen address") -> tuple[str, int]:
    """HOST and PORT of ``HOST:PORT``, which an error calls ``what``; an IPv6 host stands in brackets.

    :raises ConfigurationError: if it is nothing like that.
    """
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigurationError(f"{what} {text!r}: expected HOST:PORT, as 127.0.0.1:9092")
    return host, int(port)


def parse_config(pairs: Iterable[str]) -> dict[str, str]:
    """Settings given as ``key=value``.

    :raises ConfigurationError: if one has no ``=``.
    """
    config = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise ConfigurationError(f"broker setting {pair!r}: expected key=value")
        config[key.strip()] = value.strip()
    return config
