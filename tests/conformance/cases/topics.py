"""Topics: created, found, extended, configured, emptied and deleted, and every error of such a request."""

import functools
from uuid import UUID

from dualwrite.wire.apis import (
    AlterConfigsRequest,
    CreatePartitionsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
    Message,
    MetadataRequest,
    OffsetForLeaderEpochRequest,
)
from dualwrite.wire.error_codes import ErrorCode
from tests.conformance.cases import case
from tests.support.conformance.subject import Subject
from tests.support.requests.calls import (
    ask_for_topics,
    batch,
    configs,
    fetch,
    list_offset,
    produce,
    topic_id,
    unique,
    wanted_topic,
)
from tests.support.waiting import eventually

TOPIC, BROKER = 2, 4
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


def _assigned(*replicas: tuple[int, list[int]]) -> list[Message]:
    entry = type(wanted_topic("t")).CreatableReplicaAssignment
    return [entry(partition_index=index, broker_ids=brokers) for index, brokers in replicas]


@case
def topics_that_cannot_be_made(broker: Subject) -> None:
    existing = broker.topic()
    wanted = {
        "exists": wanted_topic(existing),
        "no name": wanted_topic(""),
        "a dot": wanted_topic("."),
        "two dots": wanted_topic(".."),
        "a space": wanted_topic("a topic"),
        "250 letters": wanted_topic("x" * 250),
        "internal": wanted_topic("__consumer_offsets"),
        "no partitions": wanted_topic(broker.name("new"), 0),
        "minus two partitions": wanted_topic(broker.name("new"), -2),
        "no replicas": wanted_topic(broker.name("new"), 1, 0),
        "two replicas": wanted_topic(broker.name("new"), 1, 2),
        "minus two replicas": wanted_topic(broker.name("new"), 1, -2),
        "defaults": wanted_topic(broker.name("new"), -1, -1),
        "an unknown setting": wanted_topic(broker.name("new"), configs=configs({"no.such": "1"})),
        "no value": wanted_topic(broker.name("new"), configs=configs({"retention.ms": None})),
        "a word for a number": wanted_topic(broker.name("new"), configs=configs({"retention.ms": "long"})),
        "out of range": wanted_topic(broker.name("new"), configs=configs({"segment.bytes": "1"})),
        "an unknown policy": wanted_topic(broker.name("new"), configs=configs({"cleanup.policy": "burn"})),
        "an unknown codec": wanted_topic(broker.name("new"), configs=configs({"compression.type": "zip"})),
        "a good setting": wanted_topic(broker.name("new"), configs=configs({"retention.ms": "1000"})),
        "an assignment and a number": wanted_topic(broker.name("new"), 1, -1, assignments=_assigned((0, [0]))),
        "a gap in an assignment": wanted_topic(broker.name("new"), -1, -1, assignments=_assigned((1, [0]))),
        "an unknown broker": wanted_topic(broker.name("new"), -1, -1, assignments=_assigned((0, [77]))),
        "nobody assigned": wanted_topic(broker.name("new"), -1, -1, assignments=_assigned((0, []))),
    }
    for label, topic in wanted.items():
        for only in (True, False):
            (answer,) = ask_for_topics(broker.client, topic, validate_only=only)
            partitions = answer.num_partitions if answer.error_code == ErrorCode.NONE else None
            broker.note(f"{label}{', validated' if only else ''}", error=answer.error_code, partitions=partitions)


@case
def names_that_collide_and_names_twice(broker: Subject) -> None:
    first = unique("a.b_c")
    for label, topic in {"first": first, "collides": first.replace("_", "."), "the same": first}.items():
        (answer,) = ask_for_topics(broker.client, wanted_topic(topic))
        broker.note(label, error=answer.error_code)
    name = unique("twice")
    for number, answer in enumerate(ask_for_topics(broker.client, wanted_topic(name), wanted_topic(name))):
        broker.note(f"twice {number}", error=answer.error_code)


@case
def what_creation_answers(broker: Subject) -> None:
    for version in range(2, 8):
        name = broker.name("new")
        (answer,) = ask_for_topics(broker.client, wanted_topic(name, 3), version=version)
        broker.note(
            f"v{version}",
            error=answer.error_code,
            partitions=answer.num_partitions if version >= 5 else None,
            replicas=answer.replication_factor if version >= 5 else None,
            identified=_is_some(answer.topic_id) if version >= 7 else None,
        )


def _is_some(identifier: UUID | None) -> bool:
    return identifier not in (None, UUID(int=0))


def _describe(broker: Subject, step: str, version: int, **fields: object) -> None:
    answer = broker.client.ask(MetadataRequest(**{"allow_auto_topic_creation": False, **fields}), version)  # type: ignore[arg-type]
    broker.note(
        step,
        topics=[
            (
                topic.name,
                ErrorCode(topic.error_code),
                topic.is_internal,
                len(topic.partitions),
                _is_some(topic.topic_id),
            )
            for topic in answer.topics
        ],
    )


@case
def metadata_of_unknown_topics(broker: Subject) -> None:
    entry = MetadataRequest.MetadataRequestTopic
    existing = broker.topic(2)
    found = topic_id(broker.client, existing)
    for version in (9, 12, 13):
        for label, name in {"known": existing, "unknown": "no-such-topic", "illegal": "a topic", "empty": ""}.items():
            _describe(broker, f"{label} in v{version}", version, topics=[entry(name=name, topic_id=None)])
    for label, identifier in {"id": found, "unknown id": UUID(int=99)}.items():
        _describe(broker, label, 12, topics=[entry(name=None, topic_id=identifier)])
    _describe(broker, "none", 12, topics=[])
    _describe(broker, "internal", 12, topics=[entry(name="__consumer_offsets", topic_id=None)])


@case
def partitions_added(broker: Subject) -> None:
    topic, entry = broker.topic(2), CreatePartitionsRequest.CreatePartitionsTopic
    given = entry.CreatePartitionsAssignment
    for label, (name, count, assignments) in {
        "the same number": (topic, 2, None),
        "fewer": (topic, 1, None),
        "none": (topic, 0, None),
        "minus one": (topic, -1, None),
        "unknown": ("no-such-topic", 3, None),
        "internal": ("__consumer_offsets", 3, None),
        "assigned to too few": (topic, 4, [given(broker_ids=[0])]),
        "assigned to nobody known": (topic, 3, [given(broker_ids=[77])]),
        "more": (topic, 3, None),
    }.items():
        for only in (True, False) if label != "internal" else (True,):
            wanted = entry(name=name, count=count, assignments=assignments)
            request = CreatePartitionsRequest(topics=[wanted], timeout_ms=1000, validate_only=only)
            (answer,) = broker.client.ask(request, 3).results
            broker.note(f"{label}{', validated' if only else ''}", error=answer.error_code)
    look = functools.partial(produce, broker.client, topic, batch([b"v"]), partition=2)
    answer = eventually(look, lambda seen: seen.error_code == ErrorCode.NONE)
    broker.note("the new one", error=answer.error_code, offset=answer.base_offset)
    twice = [entry(name=topic, count=5, assignments=None)] * 2
    request = CreatePartitionsRequest(topics=twice, timeout_ms=1000, validate_only=False)
    broker.note("twice", errors=[ErrorCode(answer.error_code) for answer in broker.client.ask(request, 3).results])


@case
def topics_deleted(broker: Subject) -> None:
    for version in range(1, 6):
        names = [broker.topic(), "no-such-topic"]
        answer = broker.client.ask(DeleteTopicsRequest(topic_names=names, timeout_ms=5000), version)
        errors = {entry.name: ErrorCode(entry.error_code) for entry in answer.responses}
        broker.note(f"v{version}", errors=[errors[name] for name in names])
    by_name, by_id = broker.topic(), broker.topic()
    state = DeleteTopicsRequest.DeleteTopicState
    found = topic_id(broker.client, by_id)
    for label, wanted in {
        "by name": state(name=by_name, topic_id=UUID(int=0)),
        "by name again": state(name=by_name, topic_id=UUID(int=0)),
        "by id": state(name=None, topic_id=found),
        "by id again": state(name=None, topic_id=found),
        "by nothing": state(name=None, topic_id=UUID(int=0)),
        "by both": state(name=broker.topic(), topic_id=UUID(int=7)),
    }.items():
        (entry,) = broker.client.ask(DeleteTopicsRequest(topics=[wanted], timeout_ms=5000), 6).responses
        broker.note(label, error=entry.error_code)
    look = functools.partial(produce, broker.client, by_name, batch([b"v"]))
    gone = eventually(look, lambda seen: seen.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    broker.note("produced to", error=gone.error_code)


@case
def a_topic_deleted_and_made_again_is_empty(broker: Subject) -> None:
    topic = broker.topic()
    produce(broker.client, topic, batch([b"old"]))
    before = topic_id(broker.client, topic)
    broker.client.ask(DeleteTopicsRequest(topic_names=[topic], timeout_ms=5000), 5)
    answer = eventually(
        lambda: ask_for_topics(broker.client, wanted_topic(topic))[0],
        lambda seen: seen.error_code == ErrorCode.NONE,
    )
    broker.note("made again", error=answer.error_code, another_id=answer.topic_id != before)
    look = functools.partial(list_offset, broker.client, topic, -1)
    seen = eventually(look, lambda answer: (answer.error_code, answer.offset) == (ErrorCode.NONE, 0))
    broker.note("its end", error=seen.error_code, offset=seen.offset)


@case
def records_deleted(broker: Subject) -> None:
    topic, entry = broker.topic(), DeleteRecordsRequest.DeleteRecordsTopic
    for _ in range(5):
        produce(broker.client, topic, batch([b"v"]))
    places = {"3": (topic, 0, 3), "back to 1": (topic, 0, 1), "past the end": (topic, 0, 6), "-2": (topic, 0, -2)}
    places |= {"no partition": (topic, 1, 0), "no topic": ("no-such-topic", 0, 0), "the end": (topic, 0, -1)}
    for label, (name, index, offset) in places.items():
        wanted = entry(name=name, partitions=[entry.DeleteRecordsPartition(partition_index=index, offset=offset)])
        answer = broker.client.ask(DeleteRecordsRequest(topics=[wanted], timeout_ms=5000), 2)
        ((result,),) = [seen.partitions for seen in answer.topics]
        broker.note(label, error=result.error_code, low=result.low_watermark)
        broker.note(f"{label}: start", offset=list_offset(broker.client, topic, -2).offset)
        below = fetch(broker.client, topic, 0)
        broker.note(f"{label}: from 0", error=below.error_code)
    answer = produce(broker.client, topic, batch([b"v"]))
    broker.note("the next", error=answer.error_code, offset=answer.base_offset, start=answer.log_start_offset)


@case
def ends_of_leader_epochs(broker: Subject) -> None:
    topic, entry = broker.topic(), OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    produce(broker.client, topic, batch([b"a", b"b"]))
    for label, (name, partition, current, wanted) in {
        "epoch 0": (topic, 0, -1, 0),
        "epoch 1": (topic, 0, -1, 1),
        "epoch -1": (topic, 0, -1, -1),
        "at 0": (topic, 0, 0, 0),
        "at 1": (topic, 0, 1, 0),
        "no partition": (topic, 1, -1, 0),
        "no topic": ("no-such-topic", 0, -1, 0),
    }.items():
        position = entry.OffsetForLeaderPartition(
            partition=partition, current_leader_epoch=current, leader_epoch=wanted
        )
        for version in (2, 3, 4):
            request = OffsetForLeaderEpochRequest(replica_id=-1, topics=[entry(topic=name, partitions=[position])])
            ((answer,),) = [seen.partitions for seen in broker.client.ask(request, version).topics]
            step = f"{label} in v{version}"
            broker.note(step, error=answer.error_code, epoch=answer.leader_epoch, end=answer.end_offset)


def _settings(broker: Subject, step: str, kind: int, name: str, *keys: str, version: int = 4) -> None:
    resource = DescribeConfigsRequest.DescribeConfigsResource
    wanted = resource(resource_type=kind, resource_name=name, configuration_keys=list(keys) or None)
    request = DescribeConfigsRequest(resources=[wanted], include_synonyms=True, include_documentation=False)
    (answer,) = broker.client.ask(request, version).results
    shown = [
        (
            entry.name,
            entry.value,
            entry.config_source,
            entry.config_type,
            entry.read_only,
            [(synonym.name, synonym.value, synonym.source) for synonym in entry.synonyms],
        )
        for entry in sorted(answer.configs, key=lambda entry: str(entry.name))
    ]
    broker.note(step, error=answer.error_code, settings=shown if keys else len(shown) > 20)


@case
def settings_described(broker: Subject) -> None:
    topic = broker.topic(retention_ms="5000", cleanup_policy="compact,delete")
    keys = ("cleanup.policy", "segment.bytes", "max.message.bytes", "compression.type", "no.such")
    _settings(broker, "of a topic", TOPIC, topic, *keys)
    _settings(broker, "of a topic, in hours for a broker", TOPIC, topic, "retention.ms")
    _settings(broker, "every one of a topic", TOPIC, topic)
    _settings(broker, "of an unknown topic", TOPIC, "no-such-topic", "retention.ms")
    _settings(broker, "of an illegal topic", TOPIC, "a topic", "retention.ms")
    _settings(broker, "of no topic", TOPIC, "", "retention.ms")
    _settings(broker, "of an unknown broker", BROKER, "77", "message.max.bytes")
    _settings(broker, "of a broker with a name", BROKER, "one", "message.max.bytes")
    _settings(broker, "of an unknown kind", 99, "x")


@case
def defaults_of_a_topic(broker: Subject) -> None:
    topic = broker.topic()
    resource = DescribeConfigsRequest.DescribeConfigsResource
    wanted = resource(resource_type=TOPIC, resource_name=topic, configuration_keys=None)
    request = DescribeConfigsRequest(resources=[wanted], include_synonyms=False, include_documentation=False)
    (answer,) = broker.client.ask(request, 4).results
    for entry in sorted(answer.configs, key=lambda entry: str(entry.name)):
        broker.note(entry.name, value=entry.value, source=entry.config_source, kind=entry.config_type)


@case
def settings_altered(broker: Subject) -> None:
    topic, resource = broker.topic(), IncrementalAlterConfigsRequest.AlterConfigsResource
    for label, (name, changes) in {
        "set": (topic, [("retention.ms", SET, "1000")]),
        "another": (topic, [("max.message.bytes", SET, "2000")]),
        "append": (topic, [("cleanup.policy", APPEND, "compact")]),
        "subtract": (topic, [("cleanup.policy", SUBTRACT, "delete")]),
        "append to a number": (topic, [("retention.ms", APPEND, "1")]),
        "delete": (topic, [("retention.ms", DELETE, None)]),
        "twice": (topic, [("retention.ms", SET, "1"), ("retention.ms", SET, "2")]),
        "no value": (topic, [("retention.ms", SET, None)]),
        "an unknown key": (topic, [("no.such", SET, "1")]),
        "a bad value": (topic, [("retention.ms", SET, "long")]),
        "an unknown operation": (topic, [("retention.ms", 9, "1")]),
        "one bad, one good": (topic, [("segment.ms", SET, "7"), ("retention.ms", SET, "long")]),
        "an unknown topic": ("no-such-topic", [("retention.ms", SET, "1000")]),
        "no topic": ("", [("retention.ms", SET, "1000")]),
    }.items():
        entries = [resource.AlterableConfig(name=key, config_operation=how, value=value) for key, how, value in changes]
        wanted = resource(resource_type=TOPIC, resource_name=name, configs=entries)
        for only in (True, False):
            request = IncrementalAlterConfigsRequest(resources=[wanted], validate_only=only)
            (answer,) = broker.client.ask(request, 1).responses
            broker.note(f"{label}{', validated' if only else ''}", error=answer.error_code)
    keys = ("retention.ms", "max.message.bytes", "cleanup.policy", "segment.ms")
    look = functools.partial(_values, broker, topic, *keys)
    seen = eventually(look, lambda values: values[1] == "2000")
    broker.note("then", values=list(zip(keys, seen, strict=True)))


def _values(broker: Subject, topic: str, *keys: str) -> list[str | None]:
    resource = DescribeConfigsRequest.DescribeConfigsResource
    wanted = resource(resource_type=TOPIC, resource_name=topic, configuration_keys=list(keys))
    (answer,) = broker.client.ask(DescribeConfigsRequest(resources=[wanted], include_synonyms=False), 4).results
    values = {entry.name: entry.value for entry in answer.configs}
    return [values.get(key) for key in keys]


@case
def settings_replaced(broker: Subject) -> None:
    topic, resource = broker.topic(retention_ms="5000"), AlterConfigsRequest.AlterConfigsResource
    for label, (name, changes) in {
        "another": (topic, [("max.message.bytes", "2000")]),
        "bad": (topic, [("max.message.bytes", "much")]),
        "unknown topic": ("no-such-topic", [("max.message.bytes", "2000")]),
    }.items():
        entries = [resource.AlterableConfig(name=key, value=value) for key, value in changes]
        wanted = resource(resource_type=TOPIC, resource_name=name, configs=entries)
        (answer,) = broker.client.ask(AlterConfigsRequest(resources=[wanted], validate_only=False), 2).responses
        broker.note(label, error=answer.error_code)
    look = functools.partial(_values, broker, topic, "retention.ms", "max.message.bytes")
    broker.note("then", values=eventually(look, lambda values: values[1] == "2000"))


@case
def resources_listed(broker: Subject) -> None:
    topic = broker.topic()
    answer = broker.client.ask(ListConfigResourcesRequest(resource_types=[TOPIC]), 1)
    names = {entry.resource_name for entry in answer.config_resources}
    broker.note("topics", error=answer.error_code, mine=topic in names, internal="__consumer_offsets" in names)
    answer = broker.client.ask(ListConfigResourcesRequest(resource_types=[99]), 1)
    broker.note("an unknown kind", error=answer.error_code, found=len(answer.config_resources))
