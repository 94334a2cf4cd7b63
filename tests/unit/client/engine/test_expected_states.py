"""The state by which a transaction will be named, before its records are acknowledged."""

from typing import Any

import pytest

from dualwrite.client.engine.acknowledged_offsets import FRESH
from dualwrite.client.protocol.requests import CommittedOffset, GroupMember
from dualwrite.ids import Anchor, PreparedTxnState
from dualwrite.records.outgoing import OutgoingRecord
from dualwrite.wire.apis import ApiKey
from tests.support.client.simulated_cluster import SimulatedCluster, SimulatedDriver

NAMELESS = PreparedTxnState()


def ready(partitions: int = 1, **settings: Any) -> SimulatedDriver:
    """A producer that has committed one record to partition 0."""
    driver = SimulatedDriver(SimulatedCluster(partitions=partitions), **settings)
    driver.init()
    driver.begin(b"first")
    driver.commit()
    driver.cluster.requests.clear()
    return driver


def expected(driver: SimulatedDriver) -> PreparedTxnState:
    return driver.engine.expected_state(driver.now)


def test_the_place_of_the_first_record_is_a_bound_until_it_is_acknowledged() -> None:
    driver = ready()
    driver.begin(b"a")
    early = expected(driver)
    assert (early.first_record, early.is_bound) == (Anchor("t", 0, 1), True)
    assert driver.cluster.requests == [], "it asks nobody"
    prepared = driver.prepare()
    assert (prepared, prepared.first_record) == (early, Anchor("t", 0, 2)), "the marker of the first one is between"
    assert early.covers(prepared)


def test_an_acknowledged_record_has_its_place() -> None:
    driver = ready()
    driver.begin(b"a")
    driver.run(driver.engine.flush(driver.now))
    early = expected(driver)
    assert (early.first_record, early.is_bound) == (Anchor("t", 0, 2), False)


def test_a_producer_that_has_written_nothing_there_cannot_tell() -> None:
    driver = ready(partitions=2)
    driver.begin()
    produce(driver, 1)
    assert expected(driver) == NAMELESS
    produce(driver, 0)
    assert expected(driver).first_record == Anchor("t", 0, 1)


def test_a_bound_that_is_old_does_not_count() -> None:
    driver = ready()
    driver.begin(b"a")
    driver.now += FRESH + 0.1
    assert expected(driver) == NAMELESS


def test_the_state_is_in_the_partition_that_it_was_expected_in() -> None:
    """Whatever partition is acknowledged first."""
    driver = ready(partitions=2)
    driver.begin()
    produce(driver, 1)
    produce(driver, 0)
    early = expected(driver)
    assert early.covers(driver.prepare())
    driver.commit()
    driver.begin()
    produce(driver, 1)
    produce(driver, 0)
    assert expected(driver).first_record == Anchor("t", 1, 1)
    prepared = driver.prepare()
    assert prepared.first_record == Anchor("t", 1, 2)


def test_a_topic_that_is_not_known_yet_is_no_empty_transaction() -> None:
    driver = ready()
    driver.begin()
    driver.engine.produce(OutgoingRecord("unknown", b"a"), 0, driver.now)
    assert expected(driver) == NAMELESS


def test_a_transaction_of_offsets_alone_has_its_name_at_once() -> None:
    driver = ready()
    driver.begin()
    offsets = [CommittedOffset("in", 0, 4)]
    driver.run(driver.engine.send_offsets_to_transaction(offsets, GroupMember("g"), driver.now))
    early = expected(driver)
    assert early
    assert (early.first_record, early.is_bound) == (None, False)
    assert early.covers(driver.prepare())


def test_an_empty_transaction_has_no_name() -> None:
    driver = ready()
    driver.begin()
    assert expected(driver) == NAMELESS


def test_delivery_callbacks_come_first_as_they_may_produce() -> None:
    driver = ready()
    driver.begin()
    driver.engine.produce(OutgoingRecord("t", b"a", on_delivery=lambda *_: None), 0, driver.now)
    assert expected(driver) == NAMELESS


def test_a_default_callback_comes_first_too() -> None:
    driver = ready(on_delivery=lambda *_: None)
    driver.begin(b"a")
    assert expected(driver) == NAMELESS


@pytest.mark.parametrize("ends", ["prepared", "aborted"])
def test_outside_of_a_transaction_nothing_is_expected(ends: str) -> None:
    driver = ready()
    driver.begin(b"a")
    if ends == "prepared":
        driver.prepare()
    else:
        driver.run(driver.engine.abort_transaction(driver.now))
    assert expected(driver) == NAMELESS
    assert ApiKey.PRODUCE in driver.cluster.requests or ends == "aborted"


def produce(driver: SimulatedDriver, partition: int) -> None:
    assert driver.engine.produce(OutgoingRecord("t", b"a", partition=partition), 0, driver.now)
