"""The broker's settings, under Apache Kafka's names. On the command line they are ``--config key=value``."""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from dualwrite.broker.clients.connection_limits import ConnectionLimits
from dualwrite.broker.clients.listeners import (
    ADVERTISED_LISTENERS,
    LISTENERS,
    PROTOCOL_MAP,
    Listener,
    host_and_port,
    is_loopback,
    parse_listeners,
    unprotected,
)
from dualwrite.broker.core.consumer_groups.commands import ConsumerGroupSettings, Limits, MigrationPolicy
from dualwrite.broker.core.group_rules import GroupSettings
from dualwrite.broker.core.transaction_rules import TransactionSettings
from dualwrite.broker.runtime.access_control import AccessSettings
from dualwrite.broker.runtime.cluster import TopicSettings
from dualwrite.broker.runtime.compaction import CleanerSettings
from dualwrite.broker.runtime.groups.offsets import OffsetSettings
from dualwrite.broker.settings.broker_settings import SETTINGS, principals
from dualwrite.broker.settings.cluster_settings import BROKER_ID, CONTROLLER_LISTENERS, NODE_ID, VOTERS, voter_id
from dualwrite.broker.settings.listener_settings import LISTENER_SETTINGS, ListenerValues, listener_key
from dualwrite.broker.settings.properties import PropertiesError, parse_properties
from dualwrite.broker.settings.sasl_settings import FAILURE_DELAY_MS
from dualwrite.broker.settings.setting import HIDDEN, Setting, SettingError
from dualwrite.broker.settings.tls_settings import REQUIRED
from dualwrite.broker.settings.topic_configs import broker_defaults, check_topic_config
from dualwrite.broker.settings.unknown_settings import DATA_DIRS, unknown_setting
from dualwrite.errors import ConfigurationError

DURABILITIES = ("fsync", "os")

_LONGEST_STOP_SECONDS = 86_400
"""A timer of some hundred years would fail in the middle of a stop."""


def _setting_of(key: str) -> Setting | None:
    """The setting that ``key`` sets, for one listener or for all."""
    own = listener_key(key)
    return SETTINGS.get(key) if own is None else LISTENER_SETTINGS[own.setting]


def setting_problems(config: Mapping[str, str]) -> Iterator[str]:
    """An error message for each setting of ``config`` that is unknown, or whose value is not allowed."""
    for key in config:
        if _setting_of(key) is None:
            yield unknown_setting(key)
    for key, text in config.items():
        setting = _setting_of(key)
        if setting is not None:
            try:
                setting.value(text)
            except ValueError as error:
                yield f"broker setting {key}={setting.shown(text)}: {error}"


@dataclass(frozen=True)
class BrokerOptions:
    """How to run a broker.

    :param data_dir: the directory for all data; the broker creates it if it is missing.
    :param durability: ``fsync`` acknowledges records once they are on disk; ``os`` once the operating system has them.
    :param config: settings by Kafka's names, as text; the others have their defaults.
    :param ready_file: the broker writes it once it accepts connections. Its first line is HOST:PORT of the first
        listener. Each further line is NAME HOST:PORT, for every listener.
    :param metrics: the address for Prometheus, or None; port 0 picks a free one, which the log shows.
    :param stop_timeout: the most seconds that a stop takes. Then the process ends, and the next start recovers.
    :param embedded: the broker serves one process, which holds the other end of its stdin. It stops when that process
        ends, and at its start waits briefly until the broker of a predecessor has stopped.
    :param allow_anonymous: allow listeners that other machines reach and that authenticate no client.
    :raises ConfigurationError: if a setting is unknown or its value is invalid.
    """

    data_dir: Path
    durability: str = "fsync"
    config: Mapping[str, str] = field(default_factory=dict, repr=False)
    ready_file: Path | None = None
    metrics: tuple[str, int] | None = None
    stop_timeout: float = 10.0
    embedded: bool = False
    allow_anonymous: bool = False

    def __post_init__(self) -> None:
        if self.durability not in DURABILITIES:
            raise ConfigurationError(f"durability {self.durability!r}: use fsync or os")
        if not 0 < self.stop_timeout <= _LONGEST_STOP_SECONDS:
            raise ConfigurationError(
                f"stop timeout {self.stop_timeout:g}: expected seconds, more than 0, up to {_LONGEST_STOP_SECONDS}"
            )
        problem = next(setting_problems(self.config), None)
        if problem is not None:
            raise ConfigurationError(problem)
        object.__setattr__(self, "config", _with_both_ids(self.config))
        self._refuse_contradictions()
        self._check_listeners()

    def overridden(self, changed: Mapping[str, str]) -> "BrokerOptions":
        """These options with the settings that clients have ``changed`` while the broker ran.

        :raises ConfigurationError: if a changed setting is unknown or its value is invalid.
        """
        return replace(self, config={**self.config, **changed})

    def number(self, key: str) -> int:
        """The value of a numeric setting."""
        value = self._value(key)
        assert isinstance(value, int)
        return value

    def is_on(self, key: str) -> bool:
        """The value of a switch."""
        return self._value(key) is True

    @property
    def listeners(self) -> tuple[Listener, ...]:
        """The listeners for clients, at least one."""
        return parse_listeners(
            self._items(LISTENERS) or [],
            self._items(ADVERTISED_LISTENERS),
            self._items(PROTOCOL_MAP) or [],
            self._items(CONTROLLER_LISTENERS) or [],
        )

    @property
    def absent_listeners(self) -> tuple[str, ...]:
        """The entries of ``listeners`` that are for controllers, and are not opened."""
        names = {name.upper() for name in self._items(CONTROLLER_LISTENERS) or []}
        return tuple(entry for entry in self._items(LISTENERS) or [] if entry.partition("://")[0].upper() in names)

    def refuse_unprotected(self, listener: Listener) -> None:
        """Refuse ``listener``, which other machines reach, if it authenticates no client and ``allow_anonymous`` is
        off.

        :raises ConfigurationError: in that case.
        """
        if not (self.allow_anonymous or self.authenticates(listener)):
            raise ConfigurationError(unprotected(listener, self.for_listener(listener.name).accepts_anyone))

    def authenticates(self, listener: Listener) -> bool:
        """True if every client of ``listener`` must prove who it is. A token without a signature proves nothing."""
        values, protocol = self.for_listener(listener.name), listener.protocol
        if protocol.is_sasl and not values.accepts_anyone:
            return True
        return protocol.is_tls and values.client_auth(protocol.is_sasl) == REQUIRED

    def for_listener(self, name: str) -> ListenerValues:
        """The settings of the listener ``name``: its own override those of the broker."""
        return ListenerValues(name, self.config)

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

    def connections(self, most: int) -> ConnectionLimits:
        """The limits of connections, of which the limit of open files allows ``most``."""
        return ConnectionLimits(
            min(most, self.number("max.connections")),
            self.number("max.connections.per.ip"),
            self.number("connections.max.idle.ms") / 1000,
        )

    @property
    def access(self) -> AccessSettings:
        """The settings of the authorizer."""
        return AccessSettings(
            is_enabled=bool(self._value("authorizer.class.name")),
            super_users=frozenset(principals(str(self._value("super.users")))),
            allows_unprotected=self.is_on("allow.everyone.if.no.acl.found"),
        )

    @property
    def memory_bytes(self) -> float:
        """The memory for large requests of all connections; infinite without a limit."""
        most = self.number("queued.max.request.bytes")
        return most if most > 0 else math.inf

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
    def consumer_groups(self) -> ConsumerGroupSettings:
        """The settings of the consumer groups' coordinator."""
        return ConsumerGroupSettings(
            session_timeout_ms=self.number("group.consumer.session.timeout.ms"),
            heartbeat_interval_ms=self.number("group.consumer.heartbeat.interval.ms"),
            session_timeout_limits=self._limits("session.timeout.ms"),
            heartbeat_interval_limits=self._limits("heartbeat.interval.ms"),
            max_size=self.number("group.consumer.max.size"),
            assignors=tuple(self._items("group.consumer.assignors") or ()),
            migration_policy=MigrationPolicy(str(self._value("group.consumer.migration.policy")).lower()),
            classic=self.groups,
        )

    def _limits(self, setting: str) -> Limits:
        """The values that a consumer group may have of its own."""
        lowest, highest = _names_of_limits(setting)
        return Limits(self.number(lowest), self.number(highest))

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
            node_id=self.number(NODE_ID),
        )

    def _refuse_contradictions(self) -> None:
        """Refuse settings under which no client could create a topic, join a group, or send the largest request."""
        try:
            check_topic_config({}, broker_defaults(self.config))
        except SettingError as error:
            raise ConfigurationError(f"the broker's defaults for topics: {error}") from None
        for voter in self._items(VOTERS) or ():
            if voter_id(voter) != self.number(NODE_ID):
                raise ConfigurationError(
                    f"broker setting {VOTERS}={voter}: the only voter is the node itself, whose {NODE_ID} is"
                    f" {self.number(NODE_ID)}"
                )
        delay, idle = FAILURE_DELAY_MS, "connections.max.idle.ms"
        if 0 <= self.number(idle) <= self.number(delay):
            raise ConfigurationError(f"broker setting {delay}={self.number(delay)}: must be less than {idle}")
        lowest, highest = "group.min.session.timeout.ms", "group.max.session.timeout.ms"
        if self.number(lowest) > self.number(highest):
            raise ConfigurationError(
                f"broker setting {lowest}={self.number(lowest)}: no member could join,"
                f" because {highest} is {self.number(highest)}"
            )
        for lowest, highest in map(_names_of_limits, ("session.timeout.ms", "heartbeat.interval.ms")):
            if self.number(lowest) > self.number(highest):
                raise ConfigurationError(
                    f"broker setting {lowest}={self.number(lowest)}: no group could have a value of its own,"
                    f" because {highest} is {self.number(highest)}"
                )
        interval, session = "group.consumer.heartbeat.interval.ms", "group.consumer.session.timeout.ms"
        if self.number(interval) >= self.number(session):
            raise ConfigurationError(
                f"broker setting {interval}={self.number(interval)}: it must be less than {session},"
                f" which is {self.number(session)}"
            )
        largest = "socket.request.max.bytes"
        if self.memory_bytes < self.number(largest):
            raise ConfigurationError(
                f"broker setting queued.max.request.bytes={self.number('queued.max.request.bytes')}:"
                f" it must be at least {largest}, which is {self.number(largest)}; raise it or lower that one"
            )

    def _check_listeners(self) -> None:
        """Refuse unprotected listeners, and settings of listeners that do not exist."""
        for listener in self.listeners:
            if not is_loopback(listener.host):
                self.refuse_unprotected(listener)
        names = {listener.name.lower() for listener in self.listeners}
        for key in self.config:
            own = listener_key(key)
            if own is not None and own.listener not in names:
                raise ConfigurationError(
                    f"broker setting {key}: there is no listener {own.listener}; {LISTENERS} has"
                    f" {', '.join(sorted(names))} (in lower case)"
                )

    def _items(self, key: str) -> list[str] | None:
        value = self._value(key)
        assert value is None or isinstance(value, list)
        return value

    def _value(self, key: str) -> object:
        setting = _setting_of(key)
        assert setting is not None, key
        text = self.config.get(key, setting.default)
        return None if text is None else setting.value(text)


def _names_of_limits(setting: str) -> tuple[str, str]:
    """The broker's settings that limit what a consumer group may have of its own, as "session.timeout.ms"."""
    return f"group.consumer.min.{setting}", f"group.consumer.max.{setting}"


def _with_both_ids(config: Mapping[str, str]) -> Mapping[str, str]:
    """``config`` with the node's id under both of its names, if it has one.

    Source: Kafka's AbstractKafkaConfig.populateSynonyms.

    :raises ConfigurationError: if the names have different values.
    """
    ids = {name: config[name] for name in (NODE_ID, BROKER_ID) if name in config}
    if len({int(text) for text in ids.values()}) > 1:
        raise ConfigurationError(
            f"broker settings {NODE_ID}={ids[NODE_ID]} and {BROKER_ID}={ids[BROKER_ID]}: they are two names of one"
            " setting; remove one of them"
        )
    return {**config, **dict.fromkeys((NODE_ID, BROKER_ID), next(iter(ids.values())))} if ids else config


def with_data_dir(config: Mapping[str, str], data_dir: str | None) -> tuple[dict[str, str], str | None]:
    """``config`` without Kafka's settings for the directory of all data, and that directory.

    :param data_dir: the option --data-dir; None if it is not given.
    :raises ConfigurationError: if several directories are named.
    """
    rest = {key: value for key, value in config.items() if key not in DATA_DIRS}
    key = next((key for key in DATA_DIRS if key in config), None)
    if key is None:
        return rest, data_dir
    if data_dir is not None and config[key] != data_dir:
        raise ConfigurationError(f"--data-dir {data_dir} and {key}={config[key]} are both given: remove one of them")
    if "," in config[key]:
        raise ConfigurationError(f"broker setting {key}={config[key]}: this broker has one directory; name one")
    return rest, config[key]


def parse_listen(text: str, label: str = "listen address") -> tuple[str, int]:
    """HOST and PORT of ``text``, which is ``HOST:PORT``. An IPv6 host stands in brackets.

    :param label: the name of the option in an error message.
    :raises ConfigurationError: if ``text`` does not have this form.
    """
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigurationError(f"{label} {text!r}: expected HOST:PORT, for example 127.0.0.1:9092")
    return host, int(port)


def parse_config(pairs: Iterable[str]) -> dict[str, str]:
    """The settings in ``pairs``, each of the form ``key=value``.

    :raises ConfigurationError: if a pair has no ``=``, or a key occurs twice.
    """
    config: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise ConfigurationError(
                f"broker setting {pair!r}: expected key=value; --config-file is for a file of them"
            )
        key = key.strip()
        if key in config:
            values = (repr(_shown(key, given)) for given in (config[key], value.strip()))
            raise ConfigurationError(f"broker setting {key} is given twice: {' and '.join(values)}")
        config[key] = value.strip()
    return config


def read_config_file(path: Path) -> dict[str, str]:
    """The settings in a file of Java's properties, such as Kafka's ``server.properties``.

    :raises ConfigurationError: if the file cannot be read, or is not of that syntax.
    """
    try:
        properties = parse_properties(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ConfigurationError(f"config file {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigurationError(f"config file {path}: it is not text in UTF-8") from None
    except PropertiesError as error:
        raise ConfigurationError(f"config file {path}: {error}") from None
    return {key: value.strip() for key, value in properties.items()}


def with_listen(config: Mapping[str, str], listen: str | None) -> dict[str, str]:
    """``config`` with the address of the option --listen, which is short for one listener named PLAINTEXT.

    :param listen: HOST:PORT; None if the option is not given.
    :raises ConfigurationError: if the address is malformed, or ``config`` has listeners, too.
    """
    if listen is None:
        return dict(config)
    host, port = parse_listen(listen)
    if LISTENERS in config:
        raise ConfigurationError(
            f"--listen {listen} and {LISTENERS}={config[LISTENERS]} are both given: --listen is short for"
            f" {LISTENERS}=PLAINTEXT://{host_and_port(host, port)}; remove one of them"
        )
    return {**config, LISTENERS: f"PLAINTEXT://{host_and_port(host, port)}"}


def _shown(key: str, text: str) -> str:
    """A value as an error message may show it; an unknown setting's may be a password."""
    setting = _setting_of(key)
    return HIDDEN if setting is None else setting.shown(text)
