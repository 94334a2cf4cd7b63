"""A shop as ORM classes with relationships of every kind, and units of work that fail after they have written them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import pytest
from sqlalchemy import Column, ForeignKey, Table, func
from sqlalchemy.orm import DeclarativeBase, Mapped, WriteOnlyMapped, composite, mapped_column, relationship

from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.unit.transaction import Transaction
from dualwrite.errors import KafkaUnavailableError

S = TypeVar("S")


class ShopBase(DeclarativeBase):
    pass


order_tags = Table(
    "order_tags",
    ShopBase.metadata,
    Column("order_id", ForeignKey("orders.id")),
    Column("tag_id", ForeignKey("tags.id")),
)


class ShopTag(ShopBase):
    __tablename__ = "tags"
    id: Mapped[int] = mapped_column(primary_key=True)


class ShopItem(ShopBase):
    __tablename__ = "items"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int | None] = mapped_column(ForeignKey("orders.id"))
    order: Mapped["ShopOrder | None"] = relationship(back_populates="items")


class ShopNote(ShopBase):
    __tablename__ = "notes"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer_id: Mapped[int | None] = mapped_column(ForeignKey("customers.id"))


class ShopCustomer(ShopBase):
    __tablename__ = "customers"
    id: Mapped[int] = mapped_column(primary_key=True)
    notes: WriteOnlyMapped[ShopNote] = relationship()
    orders: Mapped[list["ShopOrder"]] = relationship(back_populates="customer")
    card: Mapped["ShopCard | None"] = relationship(back_populates="customer")


class ShopCard(ShopBase):
    __tablename__ = "cards"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer_id: Mapped[int | None] = mapped_column(ForeignKey("customers.id"))
    customer: Mapped[ShopCustomer | None] = relationship(back_populates="card")


class ShopVisit(ShopBase):
    __tablename__ = "visits"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer_id: Mapped[int | None] = mapped_column(ForeignKey("customers.id"))
    customer: Mapped[ShopCustomer | None] = relationship()


class ShopLine(ShopBase):
    """It does not know its order, which alone keeps the relationship."""

    __tablename__ = "lines"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int | None] = mapped_column(ForeignKey("orders.id"))


class ShopOrder(ShopBase):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    city: Mapped[str | None]
    state: Mapped[str] = mapped_column(server_default="new")
    version: Mapped[int] = mapped_column(default=func.abs(-1))
    customer_id: Mapped[int | None] = mapped_column(ForeignKey("customers.id"))
    customer: Mapped[ShopCustomer | None] = relationship(back_populates="orders")
    items: Mapped[list[ShopItem]] = relationship(back_populates="order")
    seen_items: Mapped[list[ShopItem]] = relationship(viewonly=True)
    lines: Mapped[list[ShopLine]] = relationship()
    tags: Mapped[list[ShopTag]] = relationship(secondary=order_tags)


@dataclass
class ShopPoint:
    x: int
    y: int


class ShopPlace(ShopBase):
    __tablename__ = "places"
    id: Mapped[int] = mapped_column(primary_key=True)
    point: Mapped[ShopPoint] = composite(mapped_column("x"), mapped_column("y"))


def fail_after(dual_write: DualWrite, act: Callable[[Transaction], object]) -> None:
    """A unit that does ``act`` and fails."""

    def fail(tx: Transaction) -> None:
        act(tx)
        raise KafkaUnavailableError("not now")

    with pytest.raises(KafkaUnavailableError), dual_write.transaction() as tx:
        fail(tx)


def fail_with(dual_write: DualWrite, *instances: object) -> None:
    """A unit that writes ``instances`` and fails."""

    def act(tx: Transaction) -> None:
        tx.session.add_all(instances)
        tx.session.flush()

    fail_after(dual_write, act)


def stored(dual_write: DualWrite, instance: S) -> S:
    with dual_write.transaction() as tx:
        tx.session.add(instance)
    return instance


def a_stored_order(dual_write: DualWrite) -> ShopOrder:
    return stored(dual_write, ShopOrder(city="Rome", tags=[], items=[]))
