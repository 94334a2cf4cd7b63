"""The settings of a consumer group in Kafka 4.4 that concern the protocol of KIP-848. No group has a value of its own.

All groups have the values of the broker's settings ``group.consumer.*``. This broker has no share groups and no streams
groups, so it does not know their settings. Source: Kafka's GroupConfig.
"""

from collections.abc import Mapping

from dualwrite.broker.settings.setting import ConfigType, Setting, between

_OF_ALL_GROUPS = "Of all groups: the broker's setting is group.consumer.{}."

GROUP_SETTINGS: Mapping[str, Setting] = {
    "consumer.assignment.interval.ms": Setting(
        ConfigType.INT, "0", (between(0, 15_000),), "The broker assigns partitions at once."
    ),
    "consumer.heartbeat.interval.ms": Setting(
        ConfigType.INT, "5000", (between(5_000, 15_000),), _OF_ALL_GROUPS.format("heartbeat.interval.ms")
    ),
    "consumer.session.timeout.ms": Setting(
        ConfigType.INT, "45000", (between(45_000, 60_000),), _OF_ALL_GROUPS.format("session.timeout.ms")
    ),
}
"""The settings by name."""
