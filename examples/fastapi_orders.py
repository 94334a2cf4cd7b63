"""An order service with FastAPI: each order that it accepts is in the table and in the topic, or in neither.

    dualwrite db upgrade --db sqlite:///orders.db
    DATABASE_URL=sqlite:///orders.db KAFKA=127.0.0.1:9092 uvicorn --app-dir examples --factory fastapi_orders:create_app

The handlers are plain functions, which FastAPI runs in threads: a unit of work waits for the database and for Kafka.
It is a dependency of those that write, and is committed before the answer is sent.
"""

import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, create_engine, insert, select
from sqlalchemy.exc import IntegrityError
from starlette.concurrency import run_in_threadpool

from dualwrite import DualWrite, DualWriteError, InDoubtError, KafkaUnavailableError, Transaction
from dualwrite.web import unit_of_work

metadata = MetaData()
orders = Table(
    "orders",
    metadata,
    Column("number", String(40), primary_key=True),  # the client's own: a retried request is not a second order
    Column("item", String(80), nullable=False),
    Column("quantity", Integer, nullable=False),
)


UnitOfWork = Annotated[Transaction, unit_of_work(lambda connection: connection.app.state.dual_write)]


class Order(BaseModel):
    """What a client sends, what the topic gets, and what a look-up returns."""

    number: str = Field(max_length=40)
    item: str = Field(max_length=80)
    quantity: int = Field(gt=0)


def create_app(engine: Engine | None = None, kafka: dict[str, str] | None = None) -> FastAPI:
    """The service; what is not given comes from the environment."""
    logging.basicConfig(level=logging.INFO)  # dualwrite's lines: recoveries, outages, outcomes that need a person
    engine = engine or create_engine(os.environ["DATABASE_URL"])
    kafka = kafka or {"bootstrap.servers": os.environ["KAFKA"]}
    # A caller waits for the answer: in an outage of Kafka, say so after seconds and not after half a minute.
    kafka = {"message.timeout.ms": "2000", **kafka}

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        # Made here, in the worker's own process, and closed when the server stops.
        metadata.create_all(engine)
        dual_write = DualWrite(engine, kafka, application="order-service", acquire_timeout=2)
        # What a predecessor left is finished before the first request; if Kafka is down, as soon as it is up again.
        try:
            await run_in_threadpool(dual_write.recover)
        except KafkaUnavailableError:
            dual_write.recover(wait=False)
        app.state.dual_write = dual_write
        yield
        await run_in_threadpool(dual_write.close)

    app = FastAPI(lifespan=lifespan)

    @app.exception_handler(DualWriteError)
    def refuse(_request: Request, error: DualWriteError) -> JSONResponse:
        """The error tells the truth, and so does the answer: 503 is "nothing happened, send it again"."""
        if error.retriable:
            return JSONResponse({"detail": str(error)}, 503, headers={"Retry-After": "1"})
        in_doubt = isinstance(error, InDoubtError)
        return JSONResponse({"detail": "ask for the order before you send it again" if in_doubt else str(error)}, 500)

    @app.get("/readyz")
    def ready() -> JSONResponse:
        """Whether orders can be accepted: 503 until recovery has succeeded."""
        is_ready = app.state.dual_write.is_recovered
        return JSONResponse({"ready": is_ready}, 200 if is_ready else 503)

    @app.post("/orders", status_code=201)
    def place_order(order: Order, tx: UnitOfWork) -> Order:
        try:
            tx.execute(insert(orders).values(order.model_dump()))
        except IntegrityError as error:
            raise HTTPException(409, f"there is an order {order.number} already") from error
        tx.produce("orders", key=order.number, value=order.model_dump_json())
        return order

    @app.get("/orders/{number}")
    def find_order(number: str) -> Order:
        with engine.connect() as connection:  # reading needs no unit of work
            row = connection.execute(select(orders).where(orders.c.number == number)).one_or_none()
        if row is None:
            raise HTTPException(404, f"there is no order {number}")
        return Order(**row._mapping)

    return app
