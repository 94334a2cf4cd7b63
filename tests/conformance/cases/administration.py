"""Requests about replicas, quotas, features and the quorum, which have little to change on one node."""

import functools
from collections.abc import Sequence

from dualwrite.broker.core.topic_changes import ConfigOperation
from dualwrite.wire import apis
from dualwrite.wire.apis import Message
from tests.conformance.cases import case
from tests.support.conformance.subject import Subject
from tests.support.requests import admin_calls, consumer_group_calls
from tests.support.waiting import eventually

_PREFERRED, _UNCLEAN, _UNKNOWN = 0, 1, 7
_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE = 1, 2, 3
_GROUP = 32
_SESSION, _HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
_METADATA = "__cluster_metadata"
_PATH_OF_NOBODY = "/no/such/directory"


def _codes(topics: Sequence[Message], partitions: str) -> list[object]:
    """The error of every partition, in order."""
    entries = [entry for topic in topics for entry in getattr(topic, partitions)]
    return [
        (getattr(entry, "partition_id", getattr(entry, "partition_index", None)), entry.error_code) for entry in entries
    ]


@case
def elections_of_leaders(broker: Subject) -> None:
    topic, missing = broker.topic(2), broker.name("topic")
    kind = apis.ElectLeadersRequest.TopicPartitions
    chosen = {
        "some": [kind(topic=topic, partitions=[0, 1])],
        "one that is not there": [kind(topic=topic, partitions=[2]), kind(topic=missing, partitions=[0])],
        "none": [],
    }
    for version in range(3):
        for election in (_PREFERRED, _UNCLEAN) if version else (_PREFERRED,):
            for label, topics in chosen.items():
                request = apis.ElectLeadersRequest(election_type=election, topic_partitions=topics, timeout_ms=9000)
                answer = broker.client.ask(request, version)
                codes = _codes(answer.replica_election_results, "partition_result")
                broker.note(f"v{version}, type {election}, {label}", error=answer.error_code, partitions=codes)
    everywhere = apis.ElectLeadersRequest(election_type=_PREFERRED, topic_partitions=None, timeout_ms=9000)
    answer = broker.client.ask(everywhere, 2)
    mine = [entry for entry in answer.replica_election_results if entry.topic == topic]
    broker.note("all", error=answer.error_code, topics=len(mine), partitions=_codes(mine, "partition_result"))
    request = apis.ElectLeadersRequest(election_type=_UNKNOWN, topic_partitions=chosen["some"], timeout_ms=9000)
    answer = broker.client.ask(request, 2)
    codes = _codes(answer.replica_election_results, "partition_result")
    broker.note("an unknown type", error=answer.error_code, partitions=codes)


@case
def reassignments_of_partitions(broker: Subject) -> None:
    topic, missing = broker.topic(2), broker.name("topic")
    kind = apis.AlterPartitionReassignmentsRequest.ReassignableTopic
    for version in range(2):
        for label, replicas in {
            "as it is": [0], "another": [1], "one more": [0, 1], "twice": [0, 0], "nowhere": [], "cancelled": None,
        }.items():  # fmt: skip
            for name, index in ((topic, 1), (topic, 2), (missing, 0)):
                partition = kind.ReassignablePartition(partition_index=index, replicas=replicas)
                topics = [kind(name=name, partitions=[partition])]
                request = apis.AlterPartitionReassignmentsRequest(timeout_ms=9000, topics=topics)
                answer = broker.client.ask(request, version)
                codes = _codes(answer.responses, "partitions")
                step = f"v{version}, {label}, partition {index} of {broker.show(name)}"
                broker.note(step, error=answer.error_code, partitions=codes)
    listing = apis.ListPartitionReassignmentsRequest
    for label, topics in {
        "all": None,
        "some": [listing.ListPartitionReassignmentsTopics(name=topic, partition_indexes=[0, 5])],
        "missing": [listing.ListPartitionReassignmentsTopics(name=missing, partition_indexes=[0])],
    }.items():
        answer = broker.client.ask(listing(timeout_ms=9000, topics=topics), 0)
        broker.note(f"listed: {label}", error=answer.error_code, message=answer.error_message, topics=answer.topics)


@case
def directories_of_partitions(broker: Subject) -> None:
    topic, missing = broker.topic(), broker.name("topic")
    described = broker.client.ask(apis.DescribeLogDirsRequest(topics=[]), 4)
    kind = apis.AlterReplicaLogDirsRequest.AlterReplicaLogDir
    for version in (1, 2):
        for label, path in {"its own": described.results[0].log_dir, "none": _PATH_OF_NOBODY}.items():
            for name, index in ((topic, 0), (topic, 1), (missing, 0)):
                topics = [kind.AlterReplicaLogDirTopic(name=name, partitions=[index])]
                answer = broker.client.ask(
                    apis.AlterReplicaLogDirsRequest(dirs=[kind(path=path, topics=topics)]), version
                )
                codes = _codes(answer.results, "partitions")
                broker.note(f"v{version}, {label}, partition {index} of {broker.show(name)}", partitions=codes)


@case
def the_quorum(broker: Subject) -> None:
    kind = apis.DescribeQuorumRequest.TopicData
    own = kind(topic_name=_METADATA, partitions=[kind.PartitionData(partition_index=0)])
    for version in range(3):
        answer = broker.client.ask(apis.DescribeQuorumRequest(topics=[own]), version)
        ((partition,),) = [topic.partitions for topic in answer.topics]
        (voter,) = partition.current_voters
        broker.note(
            f"v{version}", error=answer.error_code, code=partition.error_code, leader=partition.leader_id,
            voter=voter.replica_id, behind=voter.log_end_offset < partition.high_watermark > 0,
            fetched=broker.moment(voter.last_fetch_timestamp), caught_up=broker.moment(voter.last_caught_up_timestamp),
            observers=partition.observers, nodes=[node.node_id for node in answer.nodes],
        )  # fmt: skip
    for label, name, index in (("another partition", _METADATA, 1), ("another topic", "topic", 0)):
        topics = [kind(topic_name=name, partitions=[kind.PartitionData(partition_index=index)])]
        answer = broker.client.ask(apis.DescribeQuorumRequest(topics=topics), 2)
        broker.note(label, error=answer.error_code, partitions=_codes(answer.topics, "partitions"))


@case
def features_updated(broker: Subject) -> None:
    kind = apis.UpdateFeaturesRequest.FeatureUpdateKey
    for label, name, level, upgrade in (
        ("the level that it has", "transaction.version", 2, _UPGRADE),
        ("the level that it has, down", "transaction.version", 2, _SAFE_DOWNGRADE),
        ("down", "transaction.version", 1, _SAFE_DOWNGRADE),
        ("down as an upgrade", "transaction.version", 1, _UPGRADE),
        ("off by force", "transaction.version", 0, _UNSAFE_DOWNGRADE),
        ("too high", "transaction.version", 9, _UPGRADE),
        ("below zero", "transaction.version", -1, _UPGRADE),
        ("no upgrade type", "transaction.version", 2, 0),
        ("unknown", "no.such.feature", 1, _UPGRADE),
    ):
        for version in (1, 2):
            update = kind(feature=name, max_version_level=level, upgrade_type=upgrade)
            request = apis.UpdateFeaturesRequest(timeout_ms=9000, feature_updates=[update], validate_only=True)
            answer = broker.client.ask(request, version)
            results = [(result.feature, result.error_code) for result in answer.results]
            broker.note(f"{label}, v{version}", error=answer.error_code, results=results)


@case
def quotas(broker: Subject) -> None:
    kind = apis.DescribeClientQuotasRequest.ComponentData
    for version in range(2):
        for label, components in {
            "all": [],
            "of clients": [kind(entity_type="client-id", match_type=2, match=None)],
            "of a user": [kind(entity_type="user", match_type=0, match="nobody")],
        }.items():
            answer = broker.client.ask(apis.DescribeClientQuotasRequest(components=components, strict=False), version)
            broker.note(f"{label}, v{version}", error=answer.error_code, entries=answer.entries)
        change = apis.AlterClientQuotasRequest.EntryData
        entity = change.EntityData(entity_type="client-id", entity_name="app")
        for remove in (False, True):
            operation = change.OpData(key="producer_byte_rate", value=1000.0, remove=remove)
            request = apis.AlterClientQuotasRequest(
                entries=[change(entity=[entity], ops=[operation])], validate_only=True
            )
            ((entry),) = broker.client.ask(request, version).entries
            broker.note(f"{'removed' if remove else 'set'}, v{version}", error=entry.error_code)


@case
def a_broker_that_leaves(broker: Subject) -> None:
    answer = broker.client.ask(apis.UnregisterBrokerRequest(broker_id=7), 0)
    broker.note("unknown", error=answer.error_code, message=answer.error_message)


@case
def settings_of_groups(broker: Subject) -> None:
    name = broker.name("group")
    described = admin_calls.describe_configs(broker.client, _GROUP, name)
    for entry in sorted(described.configs, key=lambda entry: str(entry.name)):
        if entry.name in (_HEARTBEAT, _SESSION):
            seen = {"source": entry.config_source, "kind": entry.config_type, "fixed": entry.read_only}
            broker.note(entry.name, value=entry.value, **seen)
    broker.note("without a name", error=admin_calls.describe_configs(broker.client, _GROUP, "").error_code)
    set_, delete = ConfigOperation.SET, ConfigOperation.DELETE
    for label, change in {
        "set": (_SESSION, set_, "50000"),
        "out of range": (_SESSION, set_, "1"),
        "above the range": (_HEARTBEAT, set_, "15001"),
        "no number": (_HEARTBEAT, set_, "soon"),
        "zero": (_HEARTBEAT, set_, "0"),
        "an interval of assignments": ("consumer.assignment.interval.ms", set_, "1000"),
        "of a share group": ("share.session.timeout.ms", set_, "50000"),
        "unknown": ("no.such.setting", set_, "1"),
        "null": (_SESSION, set_, None),
        "appended": (_SESSION, ConfigOperation.APPEND, "50000"),
        "subtracted": (_SESSION, ConfigOperation.SUBTRACT, "50000"),
        "unknown and appended": ("no.such.setting", ConfigOperation.APPEND, "1"),
        "deleted": (_SESSION, delete, None),
        "unknown and deleted": ("no.such.setting", delete, None),
    }.items():
        for owner in (name, ""):
            refusal = admin_calls.change(broker.client, _GROUP, owner, change, validate_only=True)
            broker.note(f"{label}, of {broker.show(owner)}", error=refusal.error, message=refusal.words)


def _own(broker: Subject, group: str) -> dict[str, list[tuple[str, str, int]]]:
    """The settings of ``group``, each with its synonyms."""
    described = admin_calls.describe_configs(broker.client, _GROUP, group, _SESSION, _HEARTBEAT, more=True)
    return {
        entry.name: [(synonym.name, synonym.value, synonym.source) for synonym in entry.synonyms]
        for entry in sorted(described.configs, key=lambda entry: str(entry.name))
    }


def _interval(member: consumer_group_calls.ConsumerClient) -> int:
    """The heartbeat interval in the answer to a heartbeat."""
    return int(member.beat().heartbeat_interval_ms)


def _listed(broker: Subject) -> list[str]:
    """The groups of this case that have settings."""
    resources = broker.client.ask(apis.ListConfigResourcesRequest(resource_types=[_GROUP]), 1).config_resources
    return [entry.resource_name for entry in resources if broker.show(entry.resource_name).startswith("group ")]


@case
def settings_that_a_group_has_of_its_own(broker: Subject) -> None:
    topic, group = broker.topic(), broker.name("group")
    set_, delete = ConfigOperation.SET, ConfigOperation.DELETE
    member = consumer_group_calls.ConsumerClient(broker.connect(), group)
    member.join(topic)
    for label, interval, changes in (
        ("both set", 6000, [(_SESSION, set_, "50000"), (_HEARTBEAT, set_, "6000")]),
        ("one set again", 7000, [(_HEARTBEAT, set_, "7000")]),
        ("one deleted, the other set", 8000, [(_SESSION, delete, None), (_HEARTBEAT, set_, "8000")]),
        ("none left", 5000, [(_HEARTBEAT, delete, None)]),
    ):
        refusal = admin_calls.change(broker.client, _GROUP, group, *changes)
        beat = functools.partial(_interval, member)
        settled = eventually(beat, functools.partial(int.__eq__, interval))  # Apache Kafka follows a moment later
        broker.note(label, error=refusal.error, settings=_own(broker, group), interval=settled, listed=_listed(broker))
    member.leave()
    for version in range(3):
        replaced = [
            admin_calls.replace_configs(broker.client, _GROUP, group, values, version)
            for values in ({_HEARTBEAT: "9000"}, {_HEARTBEAT: "1"}, {_HEARTBEAT: None}, {})
        ]
        broker.note(f"replaced, v{version}", answers=[(refusal.error, refusal.words) for refusal in replaced])
    admin_calls.change(broker.client, _GROUP, group, (_SESSION, set_, "50000"))
    eventually(lambda: len(_own(broker, group)[_SESSION]) > 1)
    (deleted,) = broker.client.ask(apis.DeleteGroupsRequest(groups_names=[group]), 2).results
    broker.note("the group deleted", error=deleted.error_code, settings=_own(broker, group))
