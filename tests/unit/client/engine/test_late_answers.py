"""Answers that reach the native producer's engine after it has given up what it asked for, and answers with a gap."""

from collections import deque
from collections.abc import Callable

import pytest

from dualwrite.client.engine.contract import Request
from dualwrite.client.engine.transaction_state import TransactionResult
from dualwrite.client.protocol.requests import CommittedOffset, GroupMember
from dualwrite.client.terms.endpoint import Endpoint
from dualwrite.client.terms.verbs import ProducerState
from dualwrite.errors import KafkaRefusedError
from dualwrite.ids import TopicPartition
from dualwrite.wire.apis import ApiKey, Message
from dualwrite.wire.error_codes import ErrorCode
from tests.support.client.simulated_cluster import SimulatedCluster, SimulatedDriver

MEMBER = GroupMember("g", 3, "member-1")


@pytest.fixture
def driver() -> SimulatedDriver:
    """A producer that has committed a first transaction, and so knows the topic and its coordinator."""
    made = SimulatedDriver(SimulatedCluster())
    made.init()
    made.begin(b"first")
    made.commit()
    return made


def committed(driver: SimulatedDriver) -> list[bytes | None]:
    return driver.cluster.logs[TopicPartition("t", 0)].committed()[1:]


def answer_to(driver: SimulatedDriver, api_key: ApiKey) -> Callable[[], None]:
    """Let the engine send its next request of ``api_key``; return the event of its answer, which has not come yet."""
    driver.cluster.requests.clear()
    while True:
        for command in driver.engine.step(driver.now):
            driver.perform(command)
        if api_key in driver.cluster.requests:
            return driver.events.pop()
        driver.events.popleft()()


def test_a_late_answer_to_an_abandoned_call_does_not_end_the_next_call(driver: SimulatedDriver) -> None:
    """A task was cancelled while it committed offsets. If their answer ended the abort, the next transaction would have
    the identity of the aborted one."""
    driver.begin()
    driver.engine.send_offsets_to_transaction([CommittedOffset("t", 0, 7)], MEMBER, driver.now)
    late = answer_to(driver, ApiKey.TXN_OFFSET_COMMIT)
    driver.engine.abandon()
    abort = driver.engine.abort_transaction(driver.now)
    end = answer_to(driver, ApiKey.END_TXN)
    late()
    assert not abort.is_done
    end()
    assert abort.outcome() is TransactionResult.ABORTED
    driver.begin(b"a")
    driver.commit()
    assert committed(driver) == [b"a"]


def test_a_late_acknowledgement_is_not_one_of_the_next_transaction(driver: SimulatedDriver) -> None:
    driver.begin(b"aborted")
    driver.engine.prepare_transaction(driver.now)
    late = answer_to(driver, ApiKey.PRODUCE)
    driver.engine.abandon()
    driver.abort()
    driver.begin(b"a")
    late()
    assert driver.engine.unacknowledged == 1
    state = driver.prepare()
    assert state.first_record is not None
    assert state.first_record.offset == 4, "behind two transactions of a record and a marker each"
    assert driver.complete(state) is TransactionResult.COMMITTED
    assert committed(driver) == [b"a"]


def test_a_late_answer_after_a_refused_record_does_nothing(driver: SimulatedDriver) -> None:
    driver.begin(b"refused")
    driver.cluster.refusals[ApiKey.PRODUCE] = deque([ErrorCode.INVALID_RECORD])
    driver.engine.send_records()
    refusal = answer_to(driver, ApiKey.PRODUCE)
    offsets = driver.engine.send_offsets_to_transaction([CommittedOffset("t", 0, 7)], MEMBER, driver.now)
    late = answer_to(driver, ApiKey.TXN_OFFSET_COMMIT)
    refusal()
    with pytest.raises(KafkaRefusedError):
        offsets.outcome()
    late()
    assert driver.engine.state is ProducerState.ABORTABLE
    assert driver.abort() is TransactionResult.ABORTED


def test_a_batch_that_an_answer_leaves_out_is_sent_again_and_is_there_once(driver: SimulatedDriver) -> None:
    arrive, left_out = driver.cluster.arrive, []

    def leaving_out(endpoint: Endpoint, request: Request) -> Message | None:
        answer = arrive(endpoint, request)
        if request.api_key is ApiKey.PRODUCE and not left_out:
            left_out.append(answer)
            return None if answer is None else type(answer)(responses=[], throttle_time_ms=0, node_endpoints=[])
        return answer

    driver.cluster.arrive = leaving_out  # type: ignore[method-assign]
    driver.begin(b"a")
    driver.commit()
    assert left_out
    assert committed(driver) == [b"a"]
