"""The settings of a single consumer group, for the protocol of KIP-848. A group without a value of its own has the
broker's: that of ``consumer.session.timeout.ms`` is ``group.consumer.session.timeout.ms``.

This broker has no share groups and no streams groups, so it does not know their settings. Source: Kafka's GroupConfig.
"""

from collections.abc import Mapping

from dualwrite.broker.settings.setting import ConfigType, Setting, at_least, only

SESSION_TIMEOUT, HEARTBEAT_INTERVAL = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
ASSIGNMENT_INTERVAL = "consumer.assignment.interval.ms"
AT_ONCE = only(0, "the broker assigns partitions at once")
"""The only interval between assignments."""

GROUP_SETTINGS: Mapping[str, Setting] = {
    ASSIGNMENT_INTERVAL: Setting(
        ConfigType.INT, "0", (AT_ONCE,), "How long the broker waits between two assignments: it does not wait."
    ),
    HEARTBEAT_INTERVAL: Setting(
        ConfigType.INT, "5000", (at_least(1),), "How often the members of the group send heartbeats."
    ),
    SESSION_TIMEOUT: Setting(
        ConfigType.INT,
        "45000",
        (at_least(1),),
        "How long the broker waits for a heartbeat of a member before it removes the member.",
    ),
}
"""The settings by name."""


def setting_of_all_groups(name: str) -> str:
    """The broker's setting that a group without a value of its own follows in the setting ``name``."""
    return f"group.{name}"
