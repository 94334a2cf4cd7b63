"""What the library knows of a consumer by asking it alone."""

import pytest
from confluent_kafka import Consumer

from dualwrite.coordinator.offsets.consumers import member_of_consumer, tracked_consumer


@pytest.mark.parametrize(("instance", "is_static"), [(None, False), ("one", True)])
def test_a_consumer_with_a_group_instance_id_is_a_static_member(instance: str | None, is_static: bool) -> None:
    """It may rejoin its group without notice to the application, so other rules hold for it."""
    config = {"group.id": "g", "bootstrap.servers": "127.0.0.1:9", "log_level": 0}
    consumer = Consumer({**config, "group.instance.id": instance} if instance else config)
    try:
        member = member_of_consumer(consumer)
        assert member.group_instance_id == instance
        assert tracked_consumer(consumer, member).is_static is is_static
    finally:
        consumer.close()
