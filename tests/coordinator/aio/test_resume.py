"""AsyncDualWrite where a prepared transaction may time out: the same lease, the same records, the same replay."""

import pytest
from sqlalchemy import select

from dualwrite.coordinator.rules.lease import LeaseLostError
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.coordinator.sql.tables import kafka_transaction_record
from dualwrite.errors import FencedError
from tests.support.coordinator.aio.async_dual_writes import AsyncPlace, run, write_unit
from tests.support.coordinator.event_table import TakingStore
from tests.support.coordinator.fake_kafka_without_2pc import ResumingKafka

pytestmark = pytest.mark.slow_cases("psycopg", "aiomysql")


def test_a_unit_that_timed_out_after_its_decision_is_replayed(place: AsyncPlace) -> None:
    place.kafka = kafka = ResumingKafka()
    kafka.before_effect = lambda request: kafka.time_out() if request == "commit" and not kafka.timed_out else None

    async def main() -> None:
        async with place.dual_write(two_phase="resume", replay=True) as dual_write:
            if place.driver == "aiomysql":
                with pytest.raises(TypeError):  # 0.3.2 cannot send bytes with PyMySQL 1.2
                    await write_unit(dual_write, "lost")
                assert place.in_both()
                return
            await write_unit(dual_write, "lost")
            await dual_write.recover()
            await write_unit(dual_write, "later")
            assert dual_write.counters.replayed == 1

    run(main())
    if place.driver == "aiomysql":
        return
    assert kafka.timed_out == 1
    assert place.in_both("lost", "later")
    with place.seen.connect() as connection:
        assert list(connection.scalars(select(kafka_transaction_record.c.record_value))) == [b"later"]


def test_without_replay_a_unit_that_timed_out_is_on_record(place: AsyncPlace) -> None:
    place.kafka = kafka = ResumingKafka()
    kafka.before_effect = lambda request: kafka.time_out() if request == "commit" and not kafka.timed_out else None

    async def main() -> None:
        async with place.dual_write(two_phase="resume") as dual_write:
            await write_unit(dual_write, "lost")
            found = await dual_write.recover()
            assert set(found.values()) <= {Outcome.HEURISTIC_ABORT, Outcome.NOTHING}
            assert dual_write.counters.heuristic == 1

    run(main())
    assert kafka.committed == []


def test_a_fenced_process_begins_no_kafka_transaction(place: AsyncPlace) -> None:
    place.kafka = kafka = ResumingKafka()

    async def main() -> None:
        async with place.dual_write(two_phase="resume") as dual_write:
            await write_unit(dual_write, "one")
            TakingStore(place.seen).take_over("orders-0", "somebody")
            begun = kafka.requests.count("begin")
            with pytest.raises(FencedError) as raised:
                await write_unit(dual_write, "two")
            assert isinstance(raised.value, LeaseLostError)
            assert kafka.requests.count("begin") == begun

    run(main())
    assert kafka.committed == ["one"]
