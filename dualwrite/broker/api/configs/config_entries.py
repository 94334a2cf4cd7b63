"""Settings in the form of DescribeConfigs and CreateTopics: each with its value, its source, and its synonyms.

Sources: KIP-226 (synonyms), KIP-569 (types and documentation); Kafka's ConfigHelper and ServerTopicConfigSynonyms.
"""

from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import NamedTuple

from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.core.broker_settings import SETTINGS
from dualwrite.broker.core.settings import ConfigType, write_value
from dualwrite.broker.core.topic_settings import DYNAMIC_DEFAULTS, TOPIC_SETTINGS
from dualwrite.broker.runtime.cluster import EVERY_NODE, NODE


class Source(IntEnum):
    """Where a setting's value comes from (Kafka: DescribeConfigsResponse.ConfigSource)."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5


class Synonym(NamedTuple):
    """A place where a setting's value may come from."""

    name: str
    value: str
    source: Source


class Entry(NamedTuple):
    """One setting. The first of its ``synonyms`` is where its value comes from."""

    name: str
    value: str | None
    read_only: bool
    kind: ConfigType
    documentation: str
    synonyms: tuple[Synonym, ...]

    @property
    def source(self) -> Source:
        """Where the value comes from."""
        return self.synonyms[0].source if self.synonyms else Source.DEFAULT


_TOGETHER: Mapping[str, tuple[str, ...]] = {
    source.name: tuple(each.name for each in setting.broker)
    for setting in TOPIC_SETTINGS.values()
    for source in setting.broker
}
"""The broker's settings that mean the same in different units, the finest first."""
_DEFAULTS = {name: setting.default for name, setting in SETTINGS.items() if setting.default is not None}


def topic_entries(configs: Mapping[str, str], broker: BrokerContext) -> Iterator[Entry]:
    """Every setting of a topic that was given ``configs``, by name."""
    defaults = broker.cluster.defaults
    for name, setting in sorted(TOPIC_SETTINGS.items()):
        value = write_value(setting.type, configs.get(name, defaults.get(name, setting.default)))
        own = (Synonym(name, value, Source.TOPIC),) if name in configs else ()
        brokers = _synonyms(setting.broker[0].name, broker) if setting.broker else ()
        yield Entry(name, value, False, setting.type, setting.documentation, (*own, *brokers))


def broker_entries(broker: BrokerContext) -> Iterator[Entry]:
    """Every setting of the broker, by name."""
    given = broker.cluster.broker_configs()
    for name, setting in sorted(SETTINGS.items()):
        text = given.get(name, setting.default)
        # A setting that is not set has no value; its meaning comes from another setting.
        value = None if text is None else write_value(setting.type, text)
        read_only = name not in DYNAMIC_DEFAULTS
        yield Entry(name, value, read_only, setting.type, setting.documentation, _synonyms(name, broker))


def dynamic_default_entries(broker: BrokerContext) -> Iterator[Entry]:
    """The settings that every node was given since its start, by name."""
    given = broker.cluster.dynamic_configs(EVERY_NODE)
    for entry in broker_entries(broker):
        if entry.name in given:
            synonyms = (Synonym(entry.name, given[entry.name], Source.DYNAMIC_DEFAULT_BROKER),)
            yield entry._replace(value=given[entry.name], synonyms=synonyms)


def _synonyms(name: str, broker: BrokerContext) -> tuple[Synonym, ...]:
    layers = (
        (Source.DYNAMIC_BROKER, broker.cluster.dynamic_configs(NODE)),
        (Source.DYNAMIC_DEFAULT_BROKER, broker.cluster.dynamic_configs(EVERY_NODE)),
        (Source.STATIC_BROKER, broker.options.config),
        (Source.DEFAULT, _DEFAULTS),
    )
    return tuple(
        Synonym(each, values[each], source)
        for source, values in layers
        for each in _TOGETHER.get(name, (name,))
        if each in values
    )
