"""The settings of a consumer group in Kafka 4.4 that concern the protocol of KIP-848. They have no effect here.

This broker has groups of the classic protocol only, whose members bring their timeouts along. So it describes these
settings with Kafka's defaults, and refuses to set them for a group. It has no share groups and no streams groups, so it
does not know their settings. Source: Kafka's GroupConfig.
"""

from collections.abc import Mapping

from dualwrite.broker.settings.setting import ConfigType, Setting, between

_CLASSIC_ONLY = "No effect: this broker has groups of the classic protocol only."

GROUP_SETTINGS: Mapping[str, Setting] = {
    "consumer.assignment.interval.ms": Setting(ConfigType.INT, "1000", (between(0, 15_000),), _CLASSIC_ONLY),
    "consumer.heartbeat.interval.ms": Setting(ConfigType.INT, "5000", (between(5_000, 15_000),), _CLASSIC_ONLY),
    "consumer.session.timeout.ms": Setting(ConfigType.INT, "45000", (between(45_000, 60_000),), _CLASSIC_ONLY),
}
"""The settings by name."""
