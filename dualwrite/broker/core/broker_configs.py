"""Settings that can be changed while the broker runs, and their effective values.

A client may change the settings of DYNAMIC_SETTINGS. Every other setting needs a restart. Sources: KIP-226; Kafka's
DynamicBrokerConfig and ConfigAdminManager.
"""

from collections.abc import Mapping

from dualwrite.broker.core.cluster import RefusedError
from dualwrite.broker.settings.broker_settings import SETTINGS
from dualwrite.broker.settings.dynamic_settings import DYNAMIC_SETTINGS
from dualwrite.broker.settings.setting import ConfigType, SettingError
from dualwrite.broker.settings.topic_configs import broker_defaults, check_topic_config
from dualwrite.broker.settings.topic_settings import DYNAMIC_DEFAULTS, TOPIC_SETTINGS
from dualwrite.wire.error_codes import ErrorCode


def check_broker_config(configs: Mapping[str, str], effective: Mapping[str, str]) -> None:
    """Check that a client may set ``configs`` on the running broker.

    :param effective: the settings of the broker that follow, with those of the start.
    :raises RefusedError: if one needs a restart or has an invalid value. The error code is Kafka's (INVALID_REQUEST,
        not INVALID_CONFIG).
    """
    fixed = [name for name in configs if name not in DYNAMIC_SETTINGS]
    if fixed:
        raise RefusedError(ErrorCode.INVALID_REQUEST, f"Cannot update these configs dynamically: {', '.join(fixed)}")
    try:
        for name, text in configs.items():
            SETTINGS[name].read(name, text)
        check_topic_config({}, broker_defaults(effective))
    except SettingError as error:
        raise RefusedError(ErrorCode.INVALID_REQUEST, str(error)) from None


def broker_lists(current: Mapping[str, str]) -> dict[str, str]:
    """The broker's list settings that can be changed while it runs, with their values."""
    return {
        name: current.get(name, TOPIC_SETTINGS[topic].default)
        for name, topic in DYNAMIC_DEFAULTS.items()
        if TOPIC_SETTINGS[topic].type is ConfigType.LIST
    }
