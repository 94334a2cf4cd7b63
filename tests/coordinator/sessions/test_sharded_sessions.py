"""Sharded sessions in a unit of work: the object itself says which connection it belongs to."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from sqlalchemy import Engine
from sqlalchemy.ext.horizontal_shard import ShardedSession
from sqlalchemy.orm import sessionmaker

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.errors import InvalidTransactionStateError
from tests.support.coordinator.event_table import ready_engine, stored_values
from tests.support.coordinator.fake_kafka import FakeKafka
from tests.support.coordinator.usual_unit import EventModel, in_both

Make = Callable[..., DualWrite]


def shard_of(_: Any, instance: EventModel, **__: Any) -> str:
    return "far" if instance.value.startswith("far") else "near"


def every_shard(*_: Any, **__: Any) -> Sequence[str]:
    return ["near", "far"]


CHOOSERS: dict[str, Any] = {
    "shard_chooser": shard_of,
    "identity_chooser": every_shard,
    "execute_chooser": every_shard,
}


@pytest.fixture
def far(tmp_path: Any) -> Any:
    engine = ready_engine(f"sqlite:///{tmp_path / 'far.db'}")
    yield engine
    engine.dispose()


def test_an_object_of_a_sharded_session_on_the_connection_is_flushed_at_the_blocks_end(
    dual_write: DualWrite, sqlite_engine: Engine, kafka: FakeKafka, far: Engine
) -> None:
    with dual_write.transaction() as tx:
        session = ShardedSession(shards={"near": tx.connection, "far": far}, **CHOOSERS)
        one, other = EventModel(), EventModel()
        session.add_all([one, other])
        one.value, other.value = "one", "far other"  # only now they have a shard
        tx.produce("events", value="one")
    assert in_both(sqlite_engine, kafka, "one")
    session.commit()
    assert stored_values(far) == ["far other"]
    session.close()


def test_a_units_own_session_may_be_sharded_and_writes_its_own_shard_only(
    make_dual_write: Make, sqlite_engine: Engine, kafka: FakeKafka, far: Engine
) -> None:
    shards = {"near": sqlite_engine, "far": far}
    factory = sessionmaker(class_=ShardedSession, shards=shards, **CHOOSERS)
    dual_write = make_dual_write(session_factory=factory)

    def write(value: str) -> None:
        with dual_write.transaction() as tx:
            tx.session.add(EventModel(value=value))
            tx.produce("events", value=value)

    write("one")
    assert in_both(sqlite_engine, kafka, "one")
    with pytest.raises(InvalidTransactionStateError, match="writes through the engine of its DualWrite alone"):
        write("far two")
    assert in_both(sqlite_engine, kafka, "one")
    assert stored_values(far) == []
