"""What topics were made with, and changes of it, on a real broker."""

import pytest

from dualwrite.admin.definitions import (
    TopicDefinition,
    add_partitions,
    await_partitions,
    set_topic_settings,
    topic_at_creation,
    topic_definitions,
)
from dualwrite.admin.groups import stable_offsets
from dualwrite.admin.topics import describe_topic, list_topics
from dualwrite.errors import KafkaRefusedError, KafkaUnavailableError
from dualwrite.ids import TopicPartition
from dualwrite.wire.error_codes import ErrorCode
from tests.support.admin.admin_site import AdminSite
from tests.support.peer_clients.kafka_helpers import PATIENCE, fresh_name


def own(definition: TopicDefinition) -> dict[str, str | None]:
    return {entry.name: entry.value for entry in definition.settings if entry.is_own}


def test_a_definition_has_id_partitions_and_every_setting(site: AdminSite) -> None:
    topic = site.topic(partitions=3, retention_ms="1000")
    (found,) = topic_definitions(site.config, [topic, "missing"]).values()
    described = describe_topic(site.config, topic)
    assert (found.name, found.topic_id, found.partitions, found.is_internal) == (topic, described.topic_id, 3, False)
    assert found.settings == described.settings
    assert own(found) == {"retention.ms": "1000"}
    assert topic_definitions(site.config, []) == {}


def test_all_definitions_are_those_of_all_topics_but_kafkas_own(site: AdminSite) -> None:
    topic = site.topic()
    found = topic_definitions(site.config)
    assert topic in found
    assert list(found) == [each.name for each in list_topics(site.config)]
    assert topic_definitions(site.config, ["__consumer_offsets"])["__consumer_offsets"].is_internal


def test_settings_are_known_before_the_topic_is_there(site: AdminSite) -> None:
    name = fresh_name()
    found = topic_at_creation(site.config, name, partitions=2, config={"retention.ms": "5"})
    values = {entry.name: (entry.value, entry.is_own) for entry in found.settings}
    assert (found.nodes, found.replicas) == (1, 1)
    assert (values["retention.ms"], values["cleanup.policy"]) == (("5", True), ("delete", False))
    assert topic_definitions(site.config, [name]) == {}
    with pytest.raises(KafkaRefusedError, match=f"topic '{name}' cannot be created: .*nonsense") as raised:
        topic_at_creation(site.config, name, partitions=2, config={"nonsense": "5"})
    assert raised.value.code == ErrorCode.INVALID_CONFIG


def test_partitions_are_added_up_to_a_number(site: AdminSite) -> None:
    topic = site.topic()
    add_partitions(site.config, topic, 3)
    await_partitions(site.config, topic, 3)
    assert topic_definitions(site.config, [topic])[topic].partitions == 3
    with pytest.raises(KafkaRefusedError, match=f"no partitions were added to topic '{topic}'") as raised:
        add_partitions(site.config, topic, 2)
    assert raised.value.code == ErrorCode.INVALID_PARTITIONS
    with pytest.raises(KafkaUnavailableError, match="does not know its partitions yet"):
        await_partitions(site.config, topic, 4, timeout=0.1)


def test_settings_are_set_and_others_stay(site: AdminSite) -> None:
    topic = site.topic(retention_ms="1000")
    set_topic_settings(site.config, topic, {"cleanup.policy": "compact"})
    assert own(topic_definitions(site.config, [topic])[topic]) == {"retention.ms": "1000", "cleanup.policy": "compact"}
    with pytest.raises(KafkaRefusedError, match=f"the settings of topic '{topic}' were not changed: .*nonsense"):
        set_topic_settings(site.config, topic, {"nonsense": "1"})


@pytest.mark.slow
def test_stable_offsets_say_which_are_pending_even_if_there_are_no_others(site: AdminSite) -> None:
    topic, other = site.topic(partitions=2), fresh_name()
    site.plain(topic, "a")
    consumer = site.consume("stable", topic, 1)
    writer = site.producer()
    writer.producer.begin_transaction()
    place = TopicPartition(topic, 1)
    pending = [type(consumer.assignment()[0])(topic, 1, 0)]
    writer.producer.send_offsets_to_transaction(pending, consumer.consumer_group_metadata(), PATIENCE)
    found = stable_offsets(site.config, ["stable", other], [TopicPartition(topic, 0), place])
    first = found["stable"][TopicPartition(topic, 0)]
    assert first is not None
    assert (first.offset, found["stable"][place], found[other]) == (1, None, {})
    assert stable_offsets(site.config, ["stable"], []) == {"stable": {}}
    writer.abort()
    consumer.close()
    assert place not in stable_offsets(site.config, ["stable"], [place])["stable"]
