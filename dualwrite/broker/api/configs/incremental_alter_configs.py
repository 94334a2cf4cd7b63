"""IncrementalAlterConfigs (44), v0-v1 (KIP-339).

Sets, deletes, appends to or subtracts from settings of a topic, of a group or of the broker (named by the node's id, or
empty for every node); validate_only changes none. New settings are durable before the answer. A topic's take effect at
once, on its log too. A group's (KIP-848) take effect with the next heartbeat of each member. The group need not exist,
and its deletion leaves its settings. No setting of a group is a list.

A client may change the broker's settings that are defaults of topic settings, and a few others; they take effect at
once. The other broker settings need a restart: INVALID_REQUEST, as for loggers and client metrics. The settings of
internal topics cannot be changed: INVALID_CONFIG, as for unknown settings and invalid values of topics and groups.
"""

from collections.abc import Mapping

from dualwrite.broker.api.configs.altering import NEEDS as NEEDS
from dualwrite.broker.api.configs.altering import Compute, alter, refuse_nulls
from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.core.cluster import RefusedError
from dualwrite.broker.core.topic_changes import ConfigChange, ConfigOperation, changed
from dualwrite.wire.apis import ApiKey, IncrementalAlterConfigsResponse, Message
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.INCREMENTAL_ALTER_CONFIGS
VERSIONS = range(2)


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Change the settings of every resource of the request."""
    return await alter(IncrementalAlterConfigsResponse, request, _change, broker)


def _change(resource: Message) -> Compute:
    refuse_nulls(
        [
            config.name
            for config in resource.configs
            if config.value is None and config.config_operation != ConfigOperation.DELETE
        ]
    )
    changes = [ConfigChange(config.name, _operation(config), config.value) for config in resource.configs]

    def compute(current: Mapping[str, str], lists: Mapping[str, str]) -> dict[str, str]:
        return changed(current, changes, lists)

    return compute


def _operation(config: Message) -> ConfigOperation:
    try:
        return ConfigOperation(config.config_operation)
    except ValueError:
        message = f"Unknown operations type {config.config_operation}"
        raise RefusedError(ErrorCode.INVALID_REQUEST, message) from None
