"""The effective settings of a topic: its own settings override the broker's, which override Kafka's defaults.

Sources: Kafka's LogConfig and ServerTopicConfigSynonyms.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from dualwrite.broker.settings.setting import SettingError, read_value
from dualwrite.broker.settings.topic_settings import COMPACT, DELETE, TOPIC_SETTINGS


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """The effective settings of a topic that have an effect in this broker. The names are Kafka's, with underscores.

    Times are in milliseconds, sizes in bytes.
    """

    cleanup_policy: frozenset[str]
    compression_gzip_level: int
    compression_type: str
    compression_zstd_level: int
    delete_retention_ms: int
    file_delete_delay_ms: int
    flush_messages: int
    flush_ms: int
    index_interval_bytes: int
    max_compaction_lag_ms: int
    max_message_bytes: int
    message_timestamp_after_max_ms: int
    message_timestamp_before_max_ms: int
    message_timestamp_type: str
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    min_insync_replicas: int
    retention_bytes: int
    retention_ms: int
    segment_bytes: int
    segment_index_bytes: int
    segment_ms: int

    @property
    def compacts(self) -> bool:
        """True if the log is compacted by key."""
        return COMPACT in self.cleanup_policy

    @property
    def deletes(self) -> bool:
        """True if old segments are removed by time and size."""
        return DELETE in self.cleanup_policy

    @property
    def roll_ms(self) -> int:
        """The age at which a segment is rolled (Kafka: LogConfig.maxSegmentMs)."""
        return min(self.segment_ms, self.max_compaction_lag_ms) if self.compacts else self.segment_ms


def topic_config(*layers: Mapping[str, str]) -> TopicConfig:
    """The defaults, overridden by ``layers``: a later layer overrides an earlier one. The layers must be valid."""
    texts = {name: setting.default for name, setting in TOPIC_SETTINGS.items()}
    for layer in layers:
        texts.update(layer)
    values: dict[str, Any] = {}
    for field in fields(TopicConfig):
        name = field.name.replace("_", ".")
        values[field.name] = read_value(TOPIC_SETTINGS[name].type, texts[name])
    values["cleanup_policy"] = frozenset(values["cleanup_policy"])
    return TopicConfig(**values)


def check_topic_config(configs: Mapping[str, str | None], defaults: Mapping[str, str]) -> Mapping[str, str]:
    """The effective settings of a topic whose own settings are ``configs``.

    :param defaults: the defaults from the broker's settings.
    :raises SettingError: for the first setting that is unknown or whose value is not allowed.
    """
    checked: dict[str, str] = {}
    for name, text in configs.items():
        if text is None:
            raise SettingError(f"Null value not supported for topic configs: {name}")
        if name not in TOPIC_SETTINGS:
            raise SettingError(f"Unknown topic config name: {name}")
        TOPIC_SETTINGS[name].read(name, text)
        checked[name] = text
    config = topic_config(defaults, checked)
    least, most = config.min_compaction_lag_ms, config.max_compaction_lag_ms
    if least > most:
        raise SettingError(
            f"conflict topic config setting min.compaction.lag.ms ({least}) > max.compaction.lag.ms ({most})"
        )
    return checked


def broker_defaults(given: Mapping[str, str]) -> dict[str, str]:
    """The defaults of topic settings that result from the settings of the broker.

    :param given: the broker's settings by name, which must be valid. Among settings with the same meaning, such as
        log.retention.ms and log.retention.hours, the finest unit wins.
    """
    defaults = {}
    for name, setting in TOPIC_SETTINGS.items():
        source = next((source for source in setting.broker if source.name in given), None)
        if source is not None:
            defaults[name] = source.as_topics(given[source.name])
    return defaults
