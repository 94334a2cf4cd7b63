"""The common part of AlterConfigs and IncrementalAlterConfigs: the resources with settings, and the checks of a change.

Source: Kafka's ConfigAdminManager (the order of the checks), ConfigurationControlManager.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from dualwrite.broker.access.acls import AclOperation
from dualwrite.broker.access.needs import Need, on_cluster, on_group, on_topic
from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.api.turns import in_turns
from dualwrite.broker.core.broker_configs import broker_lists, check_broker_config
from dualwrite.broker.core.cluster import RESERVED_TOPICS, RefusedError
from dualwrite.broker.core.consumer_groups.group_configs import check_group_configs
from dualwrite.broker.core.topic_changes import topic_lists
from dualwrite.broker.runtime.cluster import EVERY_NODE, NODE
from dualwrite.broker.settings.setting import SettingError
from dualwrite.broker.settings.topic_configs import check_topic_config
from dualwrite.ids import is_legal_topic
from dualwrite.wire.apis import Message
from dualwrite.wire.error_codes import ErrorCode

TOPIC, BROKER, GROUP = 2, 4, 32
"""The values of ConfigResource.Type that have settings here."""
_WITHOUT = {
    8: "this broker has no loggers whose level can be changed (BROKER_LOGGER)",
    16: "this broker takes no metrics of clients (CLIENT_METRICS, KIP-714)",
}

Compute = Callable[[Mapping[str, str], Mapping[str, str]], dict[str, str]]
"""Computes the new settings of a resource, from its current ones and the settings that are lists."""


def needs_of_resources(operation: AclOperation) -> tuple[Need, ...]:
    """The rights to perform ``operation`` on each type of resource with settings."""
    return (
        on_cluster(operation, "for the broker, its loggers and client metrics"),
        on_topic(operation),
        on_group(operation),
    )


def refuse_without(needs: tuple[Need, ...], resource: Message, broker: BrokerContext) -> None:
    """Refuse the request unless the client has the one of ``needs``, of :func:`needs_of_resources`, that concerns
    ``resource``."""
    on_all, *on_one = needs
    by_type = dict(zip((TOPIC, GROUP), on_one, strict=True))
    need = by_type.get(resource.resource_type)
    allowed = broker.may(on_all) if need is None else broker.may(need, resource.resource_name)
    if not allowed:
        raise RefusedError((need or on_all).error, (need or on_all).message)


NEEDS = needs_of_resources(AclOperation.ALTER_CONFIGS)
"""The rights that AlterConfigs and IncrementalAlterConfigs ask for."""


class AlterOutcome(NamedTuple):
    """The result of the change of one resource."""

    resource_type: int
    resource_name: str
    error_code: ErrorCode = ErrorCode.NONE
    error_message: str | None = None


async def alter(
    response: type[Message], request: Message, compute: Callable[[Message], Compute], broker: BrokerContext
) -> Message:
    """Change the settings of every resource of ``request``, each independently. The changes are durable on return."""
    entry = response.AlterConfigsResourceResponse
    outcomes = await _alter_each(request, compute, broker)
    return response(throttle_time_ms=0, responses=[entry(**outcome._asdict()) for outcome in outcomes])


async def _alter_each(
    request: Message, compute: Callable[[Message], Compute], broker: BrokerContext
) -> list[AlterOutcome]:
    times = Counter((resource.resource_type, resource.resource_name) for resource in request.resources)
    outcomes = []
    async for resource in in_turns(request.resources):
        key = (resource.resource_type, resource.resource_name)
        try:
            refuse_without(NEEDS, resource, broker)
            if times[key] > 1:
                raise _invalid("Each resource must appear at most once.")
            if len({config.name for config in resource.configs}) < len(resource.configs):
                raise _invalid("Error due to duplicate config keys")
            change = _CHANGES.get(key[0])
            if change is None:
                raise without_settings(key[0])
            change(key[1], compute(resource), request.validate_only, broker)
            outcomes.append(AlterOutcome(*key))
        except RefusedError as error:
            outcomes.append(AlterOutcome(*key, error.error, str(error)))
    await broker.flusher.barrier()
    return outcomes


def refuse_nulls(names: list[str]) -> None:
    """Refuse the request if ``names``, the settings without a value, is not empty."""
    if names:
        raise _invalid(f"Null value not supported for : {', '.join(names)}")


def without_settings(resource_type: int) -> RefusedError:
    """The refusal of a resource type that has no settings here."""
    return _invalid(_WITHOUT.get(resource_type, f"resources of type {resource_type} have no settings here"))


def _invalid(message: str) -> RefusedError:
    return RefusedError(ErrorCode.INVALID_REQUEST, message)


def _change_topic(name: str, compute: Compute, validate_only: bool, broker: BrokerContext) -> None:
    if not name:
        raise _invalid("Default topic resources are not allowed.")
    if not is_legal_topic(name):
        raise RefusedError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"'{name}' is not a valid topic name")
    if name in RESERVED_TOPICS:
        raise RefusedError(ErrorCode.INVALID_CONFIG, f"the broker itself decides the settings of '{name}'")
    topic = broker.cluster.topic(name)
    configs = compute(topic.configs if topic is not None else {}, topic_lists(broker.cluster.defaults))
    if topic is None:
        try:
            check_topic_config(configs, broker.cluster.defaults)
        except SettingError as error:
            raise RefusedError(ErrorCode.INVALID_CONFIG, str(error)) from None
        raise RefusedError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic '{name}'")
    decision = broker.cluster.configure_topic(name, configs, validate_only)
    if decision.fact is None:
        raise RefusedError(decision.error, decision.message or "")


def _change_broker(name: str, compute: Compute, validate_only: bool, broker: BrokerContext) -> None:
    check_node(name, broker)
    cluster, node = broker.cluster, NODE if name else EVERY_NODE
    configs = compute(cluster.dynamic_configs(node), broker_lists(cluster.broker_configs()))
    check_broker_config(configs, cluster.broker_configs({node: configs}))
    if not validate_only:
        cluster.configure_broker(node, configs)


def _change_group(name: str, compute: Compute, validate_only: bool, broker: BrokerContext) -> None:
    """Change the settings of the group ``name``. It need not exist, and its deletion leaves them (Kafka)."""
    configs = compute(broker.cluster.group_configs(name), {})
    if not name:
        raise _invalid("Default group resources are not allowed.")
    try:
        check_group_configs(configs, broker.consumer_groups.settings)
    except SettingError as error:
        raise RefusedError(ErrorCode.INVALID_CONFIG, str(error)) from None
    if not validate_only:
        broker.cluster.configure_group(name, configs)


_CHANGES = {TOPIC: _change_topic, BROKER: _change_broker, GROUP: _change_group}


def check_node(name: str, broker: BrokerContext) -> None:
    """Refuse a broker's ``name`` unless it is the node's id, or empty for every node."""
    if not name:
        return
    if not name.isdecimal() or not name.isascii():
        raise _invalid(f"Node id must be an integer, but it is: {name}")
    if name != str(broker.node_id):
        raise _invalid(f"Unexpected broker id, expected {broker.node_id}, but received {name}")
