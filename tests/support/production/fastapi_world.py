"""A FastAPI application over a database and a broker."""

from typing import Any

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from sqlalchemy import Engine, insert

from dualwrite import (
    DualWriteError,
    Transaction,
)
from dualwrite.testing.kafka import KafkaBroker
from tests.support.coordinator.event_table import events, stored_values, user_metadata
from tests.support.production import asgi


class FastApiWorld:
    """Both places, and an application over them."""

    def __init__(self, engine: Engine, broker: KafkaBroker) -> None:
        user_metadata.create_all(engine)
        self.engine = engine
        self.broker = broker
        self.topic = broker.create_topic()
        self.app = FastAPI()
        self.app.add_exception_handler(DualWriteError, self._refuse)

    @staticmethod
    def _refuse(_: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"detail": type(error).__name__}, 503 if getattr(error, "retriable", False) else 500)

    def write(self, tx: Transaction, value: str) -> None:
        tx.execute(insert(events).values(value=value))
        tx.produce(self.topic, value=value)

    def both(self) -> tuple[list[str], list[str]]:
        """What is in the table, and what a read_committed consumer sees."""
        seen = [str(record.value, "utf-8") for record in self.broker.read(self.topic) if record.value is not None]
        return stored_values(self.engine), seen

    def post(self, path: str = "/", **options: Any) -> asgi.Answer:
        return asgi.call(self.app, "POST", path, **options)


@pytest.fixture
def world(dualwrite_engine: Engine, broker: KafkaBroker) -> FastApiWorld:
    return FastApiWorld(dualwrite_engine, broker)


@pytest.fixture
def kafka_broker(broker: KafkaBroker) -> KafkaBroker:
    return broker
