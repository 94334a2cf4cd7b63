"""The settings that a consumer group has of its own: which are allowed, and what they mean for the group's rules.

A group may set a value within the broker's limits. The limits may be others at the next start: then the nearest value
within them applies, and the group's setting stays as it is. (Kafka: GroupConfig, GroupConfigManager.)
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from dualwrite.broker.core.consumer_groups.commands import ConsumerGroupSettings, Limits
from dualwrite.broker.settings.group_settings import GROUP_SETTINGS, HEARTBEAT_INTERVAL, SESSION_TIMEOUT
from dualwrite.broker.settings.setting import SettingError


def check_group_configs(configs: Mapping[str, str], settings: ConsumerGroupSettings) -> None:
    """Check that a group may have ``configs`` as its own settings.

    :param settings: the broker's.
    :raises SettingError: for the first setting that is unknown or whose value is not allowed.
    """
    for name in configs:
        if name not in GROUP_SETTINGS:
            raise SettingError(f"Unknown group config name: {name}")
    for name, text in configs.items():
        GROUP_SETTINGS[name].read(name, text)
    for name, limits in _limits(settings).items():
        if name in configs and limits.nearest(int(configs[name])) != int(configs[name]):
            raise SettingError(f"{name} must be in the range {limits.least} to {limits.most} inclusive.")
    own = with_group_configs(settings, configs)
    if configs.keys() & _limits(settings).keys() and own.session_timeout_ms <= own.heartbeat_interval_ms:
        raise SettingError(f"{SESSION_TIMEOUT} must be greater than {HEARTBEAT_INTERVAL}")


def with_group_configs(settings: ConsumerGroupSettings, configs: Mapping[str, str]) -> ConsumerGroupSettings:
    """``settings``, which are the broker's, as they apply to a group with ``configs`` of its own."""
    own = {name: limits.nearest(int(configs[name])) for name, limits in _limits(settings).items() if name in configs}
    return replace(
        settings,
        session_timeout_ms=own.get(SESSION_TIMEOUT, settings.session_timeout_ms),
        heartbeat_interval_ms=own.get(HEARTBEAT_INTERVAL, settings.heartbeat_interval_ms),
    )


def problems(configs: Mapping[str, str], settings: ConsumerGroupSettings) -> Iterator[str]:
    """A sentence about each of a group's own ``configs`` that the broker's present ``settings`` contradict."""
    for name, limits in _limits(settings).items():
        value = int(configs.get(name, limits.least))
        if limits.nearest(value) != value:
            yield (
                f"its {name}={value} is outside of the broker's limits, {limits.least} to {limits.most};"
                f" {limits.nearest(value)} applies"
            )
    own = with_group_configs(settings, configs)
    if own.session_timeout_ms <= own.heartbeat_interval_ms:
        yield (
            f"its session timeout of {own.session_timeout_ms} ms is not longer than its heartbeat interval of"
            f" {own.heartbeat_interval_ms} ms, so it removes members that are alive"
        )


def _limits(settings: ConsumerGroupSettings) -> Mapping[str, Limits]:
    return {
        HEARTBEAT_INTERVAL: settings.heartbeat_interval_limits,
        SESSION_TIMEOUT: settings.session_timeout_limits,
    }
