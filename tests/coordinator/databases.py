"""A table of the user's, beside the state table."""

from typing import Any

from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, create_engine, select

from dualwrite.cli.db import upgrade

user_metadata = MetaData()
events = Table(
    "events",
    user_metadata,
    Column("id", Integer, primary_key=True),
    Column("value", String(100), nullable=False, unique=True),
)
CONFIG = {"bootstrap.servers": "nowhere:9092"}


def ready_engine(url: str, **options: Any) -> Engine:
    upgrade(url)
    engine = create_engine(url, **options)
    user_metadata.create_all(engine)
    return engine


def stored_values(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return list(connection.scalars(select(events.c.value).order_by(events.c.id)))
