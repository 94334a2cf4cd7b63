"""A FastStream service that reads orders, stores a shipment for each, and announces it in a topic.

    dualwrite db upgrade --db sqlite:///shipments.db
    export DATABASE_URL=sqlite+aiosqlite:///shipments.db KAFKA=127.0.0.1:9092
    python examples/faststream_shipments.py

An order in the topic ``orders-to-pack`` is JSON with ``number`` and ``kilograms``. Each is shipped once, through any
crash, outage and rebalance. The middleware runs the handler in a unit of work, and the offset after the order is
committed in that unit's Kafka transaction. An order that fails three times, because FastStream cannot validate it or
the database refuses it, goes to the topic ``orders-to-pack.dlq`` instead. Create that topic first.

FastStream must not commit offsets itself: AckPolicy.MANUAL turns its commits off, and no code here calls
``message.ack()``. FastStream logs an exception and goes on with the next message, so the middleware seeks back, or
stops the service with exit code 1: let a supervisor start it again. The DualWrite gets the confluent_kafka.Consumer
inside FastStream's own consumer (its attribute ``consumer``). FastStream awaits the handler before it polls for the
next message, as long as ``max_workers`` is 1. What the handler publishes by FastStream is not in the unit.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Annotated, Any

from confluent_kafka import Consumer, Message
from faststream import AckPolicy, BaseMiddleware, Context, FastStream
from faststream.confluent import KafkaBroker
from pydantic import BaseModel, Field
from sqlalchemy import CheckConstraint, Column, Integer, MetaData, String, Table, insert
from sqlalchemy.ext.asyncio import create_async_engine

from dualwrite import AsyncDeadLetters, AsyncDualWrite, AsyncTransaction, DualWriteError, RebalancedError

INPUT, OUTPUT, DEAD_LETTERS = "orders-to-pack", "packed-orders", "orders-to-pack.dlq"

metadata = MetaData()
packed = Table(
    "packed_orders",
    metadata,
    Column("number", String(40), primary_key=True),
    Column("kilograms", Integer, CheckConstraint("kilograms <= 30"), nullable=False),
)


class OrderToPack(BaseModel):
    """A message of the input."""

    number: str = Field(max_length=40)
    kilograms: int = Field(gt=0)


class UnitOfWorkMiddleware(BaseMiddleware):
    """Each message, its handler and its offset as one unit of work; the handler gets it as ``tx``."""

    async def consume_scope(self, call_next: Any, msg: Any) -> Any:
        """Run the handler, up to three times; then put the message aside."""

        async def handle(tx: AsyncTransaction, _message: Message) -> None:
            with self.context.scope("tx", tx):
                await call_next(msg)

        dual_write: AsyncDualWrite = self.context.get("dual_write")
        letters = AsyncDeadLetters(dual_write, self._consumer, DEAD_LETTERS, offsets="committed")
        await letters.use([self.msg], handle)

    async def after_processed(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> bool:
        """Read the message again after an error that passes; stop the service after any other."""
        error = exc_val
        if isinstance(error, DualWriteError) and (error.retriable or isinstance(error, RebalancedError)):
            logging.warning("nothing was written, once more: %s", error)
            try:
                await self.context.get("dual_write").seek_to_committed(self._consumer)
            except DualWriteError as later:
                error = later
            else:
                return True
        if isinstance(error, Exception):
            logging.error("the service stops", exc_info=error)
            self.context.set_global("has_failed", True)
            self.context.get("app").exit()
            raise SystemExit from error  # no next message: its unit would commit an offset behind this one
        return False

    @property
    def _consumer(self) -> Consumer:
        consumer: Consumer = self.context.get("handler_").consumer.consumer
        return consumer


broker = KafkaBroker(os.environ.get("KAFKA", "127.0.0.1:9092"), middlewares=[UnitOfWorkMiddleware])


def seek_to_committed(consumer: Consumer, partitions: Sequence[Any]) -> None:
    """Begin new partitions at the group's offsets; called in the thread that polls."""
    broker.context.get("seek_to_committed")(consumer, partitions)


@broker.subscriber(
    INPUT,
    group_id="packing",
    ack_policy=AckPolicy.MANUAL,
    isolation_level="read_committed",
    session_timeout_ms=6000,
    on_assign=seek_to_committed,
    no_reply=True,
)
async def pack(order: OrderToPack, tx: Annotated[AsyncTransaction, Context()]) -> None:
    """Both sides of one order."""
    await tx.execute(insert(packed).values(order.model_dump()))
    await tx.produce(OUTPUT, key=order.number, value=order.model_dump_json())


@asynccontextmanager
async def lifespan() -> AsyncIterator[None]:
    """Open the DualWrite in the service's event loop, before the first poll, and close it after the last."""
    engine = create_async_engine(os.environ["DATABASE_URL"])
    async with engine.begin() as connection:
        await connection.run_sync(metadata.create_all)
    kafka = {"bootstrap.servers": os.environ["KAFKA"], "message.timeout.ms": "5000"}
    async with AsyncDualWrite(engine, kafka, application="packing") as dual_write:
        await dual_write.recover()
        broker.context.set_global("dual_write", dual_write)
        broker.context.set_global("seek_to_committed", dual_write.on_assign("committed"))
        yield
    await engine.dispose()


def main() -> None:
    """Work until SIGTERM."""
    if not {"DATABASE_URL", "KAFKA"} <= os.environ.keys():
        raise SystemExit("set DATABASE_URL and KAFKA: the first lines of this file show how")
    asyncio.run(FastStream(broker, lifespan=lifespan).run())
    if broker.context.get("has_failed"):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
