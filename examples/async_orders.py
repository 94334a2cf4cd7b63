"""An order service on asyncio: each order that it accepts is in the table and in the topic, or in neither.

    dualwrite db upgrade --db sqlite:///orders.db
    export DATABASE_URL=sqlite+aiosqlite:///orders.db KAFKA=127.0.0.1:9092
    uvicorn --app-dir examples --factory async_orders:create_app

One event loop serves all requests. Nothing in the handlers blocks it: what waits for the database or Kafka is awaited.
"""

import asyncio
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, Field
from sqlalchemy import Column, Integer, MetaData, String, Table, insert, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import create_async_engine

from dualwrite import AsyncDualWrite, AsyncTransaction, DualWriteError, KafkaUnavailableError

metadata = MetaData()
orders = Table(
    "orders",
    metadata,
    Column("number", String(40), primary_key=True),  # the client's own: a retried request is not a second order
    Column("item", String(80), nullable=False),
    Column("quantity", Integer, nullable=False),
)


class OrderMessage(BaseModel):
    """What a client sends, what the topic gets, and what a look-up returns."""

    number: str = Field(max_length=40)
    item: str = Field(max_length=80)
    quantity: int = Field(gt=0)


async def place(tx: AsyncTransaction, order: OrderMessage) -> None:
    """Both sides of an order."""
    await tx.execute(insert(orders).values(order.model_dump()))
    await tx.produce("orders", key=order.number, value=order.model_dump_json())


def create_app() -> FastAPI:
    """The service; its settings are in the environment."""
    logging.basicConfig(level=logging.INFO)  # dualwrite's lines: recoveries, outages, outcomes that need a person
    engine = create_async_engine(os.environ["DATABASE_URL"])
    kafka = {"bootstrap.servers": os.environ["KAFKA"], "delivery.timeout.ms": "2000"}
    seconds = float(os.environ.get("SECONDS_FOR_AN_ORDER", "5"))

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        # Made here, in the event loop that serves the requests.
        async with engine.begin() as connection:
            await connection.run_sync(metadata.create_all)
        async with AsyncDualWrite(engine, kafka, application="order-service", acquire_timeout=2) as dual_write:
            # What a predecessor left is finished before the first request; if Kafka is down, as soon as it is up again.
            try:
                await dual_write.recover()
            except KafkaUnavailableError:
                await dual_write.recover(wait=False)
            app.state.place = dual_write.transactional(retries=2)(place)
            yield
        await engine.dispose()

    app = FastAPI(lifespan=lifespan)

    @app.post("/orders", status_code=201)
    async def place_order(order: OrderMessage) -> OrderMessage:
        try:
            # If the time runs out after the order is decided, that is no error: it is on both sides.
            await asyncio.wait_for(app.state.place(order), seconds)
        except IntegrityError as error:
            raise HTTPException(409, f"there is an order {order.number} already") from error
        except asyncio.TimeoutError as error:
            raise HTTPException(503, "nothing happened; send it again", headers={"Retry-After": "1"}) from error
        except DualWriteError as error:
            if error.retriable:
                raise HTTPException(503, str(error), headers={"Retry-After": "1"}) from error
            raise HTTPException(500, "ask for the order before you send it again") from error
        return order

    @app.get("/orders/{number}")
    async def find_order(number: str) -> OrderMessage:
        async with engine.connect() as connection:  # reading needs no unit of work
            row = (await connection.execute(select(orders).where(orders.c.number == number))).one_or_none()
        if row is None:
            raise HTTPException(404, f"there is no order {number}")
        return OrderMessage(**row._mapping)

    return app
