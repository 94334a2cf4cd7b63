"""Settings as DescribeConfigs and CreateTopics return them: each with its value, its source, and its synonyms.

Sources: KIP-226 (synonyms), KIP-569 (types and documentation); Kafka's ConfigHelper and ServerTopicConfigSynonyms.
"""

from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import NamedTuple

from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.runtime.cluster import EVERY_NODE, NODE
from dualwrite.broker.settings.broker_settings import SETTINGS
from dualwrite.broker.settings.dynamic_settings import DYNAMIC_SETTINGS
from dualwrite.broker.settings.group_settings import GROUP_SETTINGS, setting_of_all_groups
from dualwrite.broker.settings.listener_settings import LISTENER_SETTINGS, listener_key
from dualwrite.broker.settings.setting import ConfigType, write_value
from dualwrite.broker.settings.topic_settings import TOPIC_SETTINGS


class Source(IntEnum):
    """Where a setting's value comes from (Kafka: DescribeConfigsResponse.ConfigSource)."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5
    GROUP = 8


class Synonym(NamedTuple):
    """A source that may give a setting its value."""

    name: str
    value: str | None
    source: Source


class Entry(NamedTuple):
    """One setting. Its value comes from the first of its ``synonyms``."""

    name: str
    value: str | None
    read_only: bool
    kind: ConfigType
    documentation: str
    synonyms: tuple[Synonym, ...]

    @property
    def is_sensitive(self) -> bool:
        """True if clients may not see the value."""
        return self.kind is ConfigType.PASSWORD

    @property
    def source(self) -> Source:
        """The source of the value."""
        return self.synonyms[0].source if self.synonyms else Source.DEFAULT


_TOGETHER: Mapping[str, tuple[str, ...]] = {
    source.name: tuple(synonym.name for synonym in setting.broker)
    for setting in TOPIC_SETTINGS.values()
    for source in setting.broker
}
"""The broker's settings that mean the same in different units, the finest first."""
_DEFAULTS = {name: setting.default for name, setting in SETTINGS.items() if setting.default is not None}


def topic_entries(configs: Mapping[str, str], broker: BrokerContext) -> Iterator[Entry]:
    """Every setting of a topic whose own settings are ``configs``, by name."""
    defaults = broker.cluster.defaults
    for name, setting in sorted(TOPIC_SETTINGS.items()):
        value = write_value(setting.type, configs.get(name, defaults.get(name, setting.default)))
        own_synonyms = (Synonym(name, value, Source.TOPIC),) if name in configs else ()
        broker_synonyms = _synonyms(setting.broker[0].name, broker) if setting.broker else ()
        yield Entry(name, value, False, setting.type, setting.documentation, (*own_synonyms, *broker_synonyms))


def broker_entries(broker: BrokerContext) -> Iterator[Entry]:
    """Every setting of the broker, by name."""
    configured = broker.cluster.broker_configs()
    for name, setting in sorted(SETTINGS.items()):
        text = configured.get(name, setting.default)
        # A setting that is not set has no value; its meaning comes from another setting.
        value = None if text is None else write_value(setting.type, text)
        read_only = name not in DYNAMIC_SETTINGS
        yield _guarded(Entry(name, value, read_only, setting.type, setting.documentation, _synonyms(name, broker)))
    yield from _listener_entries(broker)


def group_entries(group: str, broker: BrokerContext) -> Iterator[Entry]:
    """Every setting of ``group``, by name."""
    configs = broker.cluster.group_configs(group)
    for name, setting in sorted(GROUP_SETTINGS.items()):
        synonyms = _synonyms(setting_of_all_groups(name), broker)
        if name in configs:
            synonyms = (Synonym(name, write_value(setting.type, configs[name]), Source.GROUP), *synonyms)
        yield Entry(name, synonyms[0].value, False, setting.type, setting.documentation, synonyms)


def dynamic_default_entries(broker: BrokerContext) -> Iterator[Entry]:
    """The settings that clients have set for every node, by name."""
    configured = broker.cluster.dynamic_configs(EVERY_NODE)
    for entry in broker_entries(broker):
        if entry.name in configured:
            synonyms = (Synonym(entry.name, configured[entry.name], Source.DYNAMIC_DEFAULT_BROKER),)
            yield entry._replace(value=configured[entry.name], synonyms=synonyms)


def _listener_entries(broker: BrokerContext) -> Iterator[Entry]:
    """The settings that single listeners have for themselves, by name. The broker's follow as their synonyms."""
    for name, text in sorted(broker.options.config.items()):
        own = listener_key(name)
        if own is not None:
            setting = LISTENER_SETTINGS[own.setting]
            synonyms = (Synonym(name, text, Source.STATIC_BROKER), *_synonyms(own.setting, broker))
            value = write_value(setting.type, text)
            yield _guarded(Entry(name, value, True, setting.type, setting.documentation, synonyms))


def _guarded(entry: Entry) -> Entry:
    """``entry`` as clients may see it: without its value, if that is sensitive."""
    if not entry.is_sensitive:
        return entry
    return entry._replace(value=None, synonyms=tuple(synonym._replace(value=None) for synonym in entry.synonyms))


def _synonyms(name: str, broker: BrokerContext) -> tuple[Synonym, ...]:
    layers = (
        (Source.DYNAMIC_BROKER, broker.cluster.dynamic_configs(NODE)),
        (Source.DYNAMIC_DEFAULT_BROKER, broker.cluster.dynamic_configs(EVERY_NODE)),
        (Source.STATIC_BROKER, broker.options.config),
        (Source.DEFAULT, _DEFAULTS),
    )
    return tuple(
        Synonym(synonym, values[synonym], source)
        for source, values in layers
        for synonym in _TOGETHER.get(name, (name,))
        if synonym in values
    )
