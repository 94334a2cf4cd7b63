"""The routing table: for each API its handler and its versions. ApiVersions answers from it."""

from collections.abc import Awaitable, Callable, Iterator
from types import ModuleType
from typing import NamedTuple

from dualwrite.broker.api import api_versions
from dualwrite.broker.api.auditing.act import Acts
from dualwrite.broker.api.auditing.acts import ACTS
from dualwrite.broker.api.cluster import (
    alter_partition_reassignments,
    alter_replica_log_dirs,
    describe_cluster,
    describe_log_dirs,
    describe_quorum,
    describe_topic_partitions,
    elect_leaders,
    find_coordinator,
    list_partition_reassignments,
    metadata,
    unregister_broker,
    update_features,
)
from dualwrite.broker.api.configs import (
    alter_client_quotas,
    alter_configs,
    describe_client_quotas,
    describe_configs,
    incremental_alter_configs,
    list_config_resources,
)
from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.api.groups import (
    consumer_group_describe,
    consumer_group_heartbeat,
    delete_groups,
    describe_groups,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    offset_commit,
    offset_delete,
    offset_fetch,
    sync_group,
)
from dualwrite.broker.api.records import delete_records, fetch, list_offsets, offset_for_leader_epoch, produce
from dualwrite.broker.api.security import (
    alter_user_scram_credentials,
    create_acls,
    delete_acls,
    describe_acls,
    describe_user_scram_credentials,
    sasl_authenticate,
    sasl_handshake,
)
from dualwrite.broker.api.topics import create_partitions, create_topics, delete_topics
from dualwrite.broker.api.transactions import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    describe_producers,
    describe_transactions,
    end_txn,
    init_producer_id,
    list_transactions,
    txn_offset_commit,
    write_txn_markers,
)
from dualwrite.wire.apis import ApiKey, Message

Handler = Callable[[Message, int, BrokerContext], Awaitable[Message | None]]


class Route(NamedTuple):
    """The handler and the versions of one API; and what finds the acts for the audit log, if it is administrative."""

    versions: range
    handle: Handler
    acts: Acts | None = None


MODULES: tuple[ModuleType, ...] = (
    produce,
    fetch,
    list_offsets,
    metadata,
    offset_commit,
    offset_fetch,
    offset_delete,
    find_coordinator,
    join_group,
    sync_group,
    heartbeat,
    leave_group,
    list_groups,
    describe_groups,
    delete_groups,
    consumer_group_heartbeat,
    consumer_group_describe,
    create_topics,
    init_producer_id,
    add_partitions_to_txn,
    add_offsets_to_txn,
    txn_offset_commit,
    end_txn,
    describe_producers,
    describe_transactions,
    list_transactions,
    write_txn_markers,
    delete_records,
    delete_topics,
    create_partitions,
    offset_for_leader_epoch,
    describe_cluster,
    describe_topic_partitions,
    describe_configs,
    incremental_alter_configs,
    alter_configs,
    list_config_resources,
    describe_client_quotas,
    alter_client_quotas,
    describe_log_dirs,
    alter_replica_log_dirs,
    elect_leaders,
    alter_partition_reassignments,
    list_partition_reassignments,
    describe_quorum,
    update_features,
    unregister_broker,
    describe_acls,
    create_acls,
    delete_acls,
    sasl_handshake,
    sasl_authenticate,
    describe_user_scram_credentials,
    alter_user_scram_credentials,
)


async def _answer_api_versions(request: Message, version: int, broker: BrokerContext) -> Message:
    return api_versions.respond(request, version, broker, advertised())


ROUTES: dict[ApiKey, Route] = {
    api_versions.KEY: Route(api_versions.VERSIONS, _answer_api_versions),
    **{module.KEY: Route(module.VERSIONS, module.handle, ACTS.get(module.KEY)) for module in MODULES},
}


def advertised() -> Iterator[tuple[int, range]]:
    """Every API key with its versions, for ApiVersions.

    Produce is advertised from v0 on, as in Apache Kafka, although only v3 and above are supported: librdkafka requires
    it.
    """
    for key, route in sorted(ROUTES.items()):
        yield key, range(route.versions.stop) if key is ApiKey.PRODUCE else route.versions
