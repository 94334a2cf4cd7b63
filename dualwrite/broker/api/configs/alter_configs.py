"""AlterConfigs (33), v0-v2.

Replaces all settings of a topic, of a group or of the broker (named by the node's id, or empty for every node) by those
of the request. IncrementalAlterConfigs supersedes it, because that leaves settings unchanged that the request does not
name. Otherwise the two behave alike.
"""

from collections.abc import Mapping

from dualwrite.broker.api.configs.altering import NEEDS as NEEDS
from dualwrite.broker.api.configs.altering import Compute, alter, refuse_nulls
from dualwrite.broker.api.context import BrokerContext
from dualwrite.wire.apis import AlterConfigsResponse, ApiKey, Message

KEY = ApiKey.ALTER_CONFIGS
VERSIONS = range(3)


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Replace the settings of every resource of the request."""
    return await alter(AlterConfigsResponse, request, _replace, broker)


def _replace(resource: Message) -> Compute:
    refuse_nulls([config.name for config in resource.configs if config.value is None])

    def compute(current: Mapping[str, str], lists: Mapping[str, str]) -> dict[str, str]:
        return {config.name: config.value for config in resource.configs}

    return compute
