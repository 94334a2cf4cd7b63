"""``session_factory``: the unit's session is of the application's own kind."""

import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import sqlmodel
from sqlalchemy import Engine, create_engine, event, insert, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from sqlmodel.ext.asyncio.session import AsyncSession as SQLModelAsyncSession

from dualwrite.coordinator.aio.transaction import AsyncTransaction
from dualwrite.coordinator.dual_write import DualWrite
from dualwrite.coordinator.process.watchdog import Limit
from dualwrite.coordinator.sql.decision_store import SqlDecisionStore
from dualwrite.coordinator.unit.transaction import Transaction
from dualwrite.errors import ConfigurationError, InvalidTransactionStateError, KafkaUnavailableError
from tests.support.coordinator.aio.async_dual_writes import AsyncPlace, run
from tests.support.coordinator.event_table import events, stored_values
from tests.support.coordinator.fake_kafka import FakeKafka
from tests.support.coordinator.usual_unit import EventModel, fail_at, in_both, raising, run_unit

Make = Callable[..., DualWrite]


class Hero(sqlmodel.SQLModel, table=True):
    __tablename__ = "heroes"
    id: int | None = sqlmodel.Field(default=None, primary_key=True)
    name: str


class ShopSession(Session):
    """A session with verbs, and a connection for each model."""

    def __init__(self, tenant: str = "none", **options: Any) -> None:
        super().__init__(**options)
        self.tenant = tenant
        self.closed = 0

    def order(self, value: str) -> EventModel:
        made = EventModel(value=f"{self.tenant}: {value}")
        self.add(made)
        return made

    def close(self) -> None:
        self.closed += 1
        super().close()

    def commit(self) -> None:
        raise AssertionError("the unit commits")


def test_the_units_session_has_the_class_and_the_options_of_the_sessionmaker(
    make_dual_write: Make, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    factory = sessionmaker(sqlite_engine, class_=ShopSession, tenant="a", expire_on_commit=False, info={"who": "shop"})
    with make_dual_write(session_factory=factory).transaction() as tx:
        session = tx.session
        assert isinstance(session, ShopSession)
        assert type(session).__name__ == "ShopSession"
        assert (session.info["who"], session.expire_on_commit) == ("shop", False)
        session.order("tea")
        tx.produce("events", value="a: tea")
    assert session.closed > 0
    assert in_both(sqlite_engine, kafka, "a: tea")


@pytest.mark.parametrize("is_class", [True, False])
def test_sqlmodels_session_joins(
    make_dual_write: Make, sqlite_engine: Engine, kafka: FakeKafka, is_class: bool
) -> None:
    sqlmodel.SQLModel.metadata.create_all(sqlite_engine)
    factory: Any = sqlmodel.Session if is_class else sessionmaker(sqlite_engine, class_=sqlmodel.Session)
    hero, runs = Hero(name="Ada"), iter(range(2))
    dual_write = make_dual_write(session_factory=factory)

    @dual_write.transactional(retries=1)
    def put(tx: Transaction) -> None:
        session = tx.session
        assert isinstance(session, sqlmodel.Session)
        session.add(hero)
        assert session.exec(sqlmodel.select(Hero)).one().name == "Ada"
        tx.produce("heroes", value="Ada")
        if next(runs) == 0:
            raise KafkaUnavailableError("not now")

    put()
    with sqlmodel.Session(sqlite_engine) as session:
        assert [each.name for each in session.exec(sqlmodel.select(Hero))] == ["Ada"]
    assert kafka.committed == ["Ada"]


def test_listeners_of_the_sessionmaker_hear_the_units_session(make_dual_write: Make, sqlite_engine: Engine) -> None:
    factory = sessionmaker(sqlite_engine)
    heard: list[object] = []
    event.listen(factory, "after_flush", lambda *_: heard.append("flush"))
    with make_dual_write(session_factory=factory).transaction() as tx:
        tx.session.add(EventModel(value="one"))
    assert heard == ["flush"]


def trail_of(factory: Any) -> list[str]:
    """What listeners of ``factory`` hear of the end of a session. Before a commit they write a row, as a trail does."""
    heard: list[str] = []

    @event.listens_for(factory, "before_commit")
    def write_trail(session: Session) -> None:
        heard.append("before_commit")
        session.add(EventModel(value=f"trail of {sorted(each.value for each in session.new)}"))

    for name in ("after_commit", "after_rollback"):
        event.listen(factory, name, lambda _, name=name: heard.append(name))
    return heard


def add_one(tx: Transaction) -> None:
    tx.session.add(EventModel(value="one"))
    tx.produce("events", value="one")


def test_listeners_of_a_commit_hear_that_of_the_unit(
    make_dual_write: Make, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    factory = sessionmaker(sqlite_engine)
    heard = trail_of(factory)
    run_unit(make_dual_write(session_factory=factory), add_one)
    assert heard == ["before_commit", "after_commit"]
    assert sorted(stored_values(sqlite_engine)) == ["one", "trail of ['one']"]
    assert kafka.committed == ["one"]


@pytest.mark.parametrize("is_late", [False, True])
def test_listeners_of_a_rollback_hear_that_of_the_unit(
    make_dual_write: Make, sqlite_engine: Engine, kafka: FakeKafka, is_late: bool
) -> None:
    factory = sessionmaker(sqlite_engine)
    heard = trail_of(factory)
    dual_write = make_dual_write(session_factory=factory)
    if is_late:
        fail_at(kafka, "prepare")
    with pytest.raises(KafkaUnavailableError if is_late else KeyError):
        run_unit(dual_write, add_one, *([] if is_late else [raising(KeyError("the block fails"))]))
    assert heard == ["before_commit"] * is_late + ["after_rollback"]
    assert in_both(sqlite_engine, kafka)


def roll_session_back(tx: Transaction) -> None:
    tx.session.flush()
    tx.session.rollback()


def flush_in_vain(tx: Transaction) -> None:
    tx.session.add_all([EventModel(id=1, value="two"), EventModel(id=1, value="three")])
    tx.session.flush()


def begin_again(tx: Transaction) -> None:
    roll_session_back(tx)
    tx.session.add(EventModel(value="four"))


@pytest.mark.parametrize(
    ("act", "times"),
    [(roll_session_back, 1), (flush_in_vain, 1), (lambda tx: tx.connection.rollback(), 1), (begin_again, 2)],
    ids=["session", "flush", "connection", "again"],
)
def test_listeners_hear_once_of_each_rollback_in_the_block_and_of_no_commit_after_it(
    make_dual_write: Make,
    sqlite_engine: Engine,
    kafka: FakeKafka,
    act: Callable[[Transaction], object],
    times: int,
) -> None:
    factory = sessionmaker(sqlite_engine)
    heard = trail_of(factory)
    with pytest.raises((InvalidTransactionStateError, IntegrityError)):
        run_unit(make_dual_write(session_factory=factory), add_one, act)
    assert heard == ["after_rollback"] * times
    assert in_both(sqlite_engine, kafka)


@pytest.mark.parametrize("name", ["before_commit", "before_flush"])
def test_an_inner_block_of_a_listener_at_the_units_end_dooms_the_unit_if_its_error_is_swallowed(
    make_dual_write: Make, sqlite_engine: Engine, kafka: FakeKafka, name: str
) -> None:
    factory = sessionmaker(sqlite_engine)
    dual_write = make_dual_write(session_factory=factory)

    def fail_inside(*_: object) -> None:
        with suppress(KeyError):
            run_unit(dual_write, raising(KeyError("inner")))

    event.listen(factory, name, fail_inside)
    with pytest.raises(InvalidTransactionStateError, match="an inner block of this unit of work raised"):
        run_unit(dual_write, add_one)
    assert in_both(sqlite_engine, kafka)


def test_a_listener_that_fails_before_the_commit_fails_the_unit_and_one_after_it_does_not(
    make_dual_write: Make, sqlite_engine: Engine, kafka: FakeKafka, caplog: pytest.LogCaptureFixture
) -> None:
    factory = sessionmaker(sqlite_engine)
    failing = ["before_commit"]

    def fail(name: str) -> None:
        if name in failing:
            raise KeyError(name)

    for name in ("before_commit", "after_commit"):
        event.listen(factory, name, lambda _, name=name: fail(name))
    dual_write = make_dual_write(session_factory=factory)
    with pytest.raises(KeyError, match="before_commit"):
        run_unit(dual_write, add_one)
    assert in_both(sqlite_engine, kafka)
    failing[:] = ["after_commit"]
    run_unit(dual_write, add_one)
    assert in_both(sqlite_engine, kafka, "one")
    assert "KeyError: 'after_commit'" in caplog.text


@pytest.mark.parametrize("name", ["before_commit", "after_commit", "after_rollback"])
def test_the_time_that_a_listener_takes_is_not_the_databases(
    make_dual_write: Make, sqlite_engine: Engine, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    factory, limit, left = sessionmaker(sqlite_engine), Limit(60, "as on a server"), list[float]()
    monkeypatch.setattr(SqlDecisionStore, "limit", lambda *_: limit)
    event.listen(factory, name, lambda _: left.append(limit.remaining()))
    with suppress(KeyError):
        run_unit(
            make_dual_write(session_factory=factory),
            add_one,
            *([raising(KeyError("the block fails"))] if name == "after_rollback" else []),
        )
    assert left == [math.inf]


@pytest.mark.parametrize("name", ["before_commit", "after_commit", "after_rollback"])
def test_to_listeners_a_scoped_session_is_the_units(make_dual_write: Make, sqlite_engine: Engine, name: str) -> None:
    factory, heard = sessionmaker(sqlite_engine), list[bool]()
    scoped = scoped_session(factory)
    event.listen(factory, name, lambda session: heard.append(scoped() is session))
    with suppress(KeyError):
        run_unit(
            make_dual_write(session_factory=scoped),
            add_one,
            *([raising(KeyError("the block fails"))] if name == "after_rollback" else []),
        )
    assert heard == [True]
    assert not scoped.registry.has()


@pytest.mark.parametrize("name", ["after_commit", "after_rollback"])
def test_a_listener_after_the_end_can_run_no_statement(
    make_dual_write: Make, sqlite_engine: Engine, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """Its transaction would be rolled back."""
    factory = sessionmaker(sqlite_engine)
    event.listen(factory, name, lambda session: session.execute(insert(EventModel).values(value="late")))
    with suppress(KeyError):
        run_unit(
            make_dual_write(session_factory=factory),
            add_one,
            *([raising(KeyError("the block fails"))] if name == "after_rollback" else []),
        )
    assert stored_values(sqlite_engine) == (["one"] if name == "after_commit" else [])
    assert "the unit of work of this session has ended" in caplog.text


@pytest.mark.parametrize(
    "options", [{"twophase": True}, {"autobegin": False}, {"join_transaction_mode": "control_fully"}]
)
def test_options_that_are_the_units_own_do_not_matter(
    make_dual_write: Make, sqlite_engine: Engine, kafka: FakeKafka, options: dict[str, Any]
) -> None:
    with make_dual_write(session_factory=sessionmaker(sqlite_engine, **options)).transaction() as tx:
        tx.session.add(EventModel(value="one"))
        tx.produce("events", value="one")
    assert in_both(sqlite_engine, kafka, "one")


def test_a_sessionmaker_can_be_configured_later(make_dual_write: Make, sqlite_engine: Engine) -> None:
    factory = sessionmaker()
    dual_write = make_dual_write(session_factory=factory)
    factory.configure(info={"who": "shop"})
    with dual_write.transaction() as tx:
        assert tx.session.info["who"] == "shop"


def test_its_commit_is_refused(make_dual_write: Make, sqlite_engine: Engine, kafka: FakeKafka) -> None:
    """The application's own commit() is not called."""
    with make_dual_write(session_factory=ShopSession).transaction() as tx:
        tx.session.add(EventModel(value="one"))
        tx.produce("events", value="one")
        with pytest.raises(InvalidTransactionStateError, match=r"commit\(\) of tx.session is refused"):
            tx.session.commit()
    assert in_both(sqlite_engine, kafka, "one")


def test_a_model_that_the_sessionmaker_binds_to_the_units_engine_is_written_by_the_unit(
    make_dual_write: Make, sqlite_engine: Engine, kafka: FakeKafka
) -> None:
    factory = sessionmaker(binds={EventModel: sqlite_engine.execution_options(stream_results=True)})
    with make_dual_write(session_factory=factory).transaction() as tx:
        tx.session.add(EventModel(value="one"))
        tx.produce("events", value="one")
    assert in_both(sqlite_engine, kafka, "one")


@pytest.mark.parametrize("is_schema", [True, False], ids=["another schema", "another database"])
def test_a_model_that_the_sessionmaker_binds_elsewhere_is_refused(
    make_dual_write: Make, sqlite_engine: Engine, kafka: FakeKafka, is_schema: bool
) -> None:
    other = create_engine(sqlite_engine.url)  # the same URL says little: it may have connect_args
    if is_schema:
        other = sqlite_engine.execution_options(schema_translate_map={None: "other"})
    factory = sessionmaker(sqlite_engine, binds={EventModel: other})

    def write(tx: Transaction) -> None:
        tx.produce("events", value="one")
        tx.session.add(EventModel(value="one"))

    dual_write = make_dual_write(session_factory=factory)
    with pytest.raises(InvalidTransactionStateError, match="writes through the engine of its DualWrite alone"):  # noqa: SIM117
        with dual_write.transaction() as tx:
            write(tx)
    assert in_both(sqlite_engine, kafka)


@pytest.mark.parametrize("factory", [Session, lambda: Session(), "Session", int, async_sessionmaker()])
def test_what_makes_no_session_of_sqlalchemys_is_refused(make_dual_write: Make, factory: Any) -> None:
    if factory is Session:
        make_dual_write(session_factory=factory)
        return
    with pytest.raises(ConfigurationError, match=r"session_factory .*: give a sessionmaker, a scoped_session"):
        make_dual_write(session_factory=factory)


class AsyncShopSession(AsyncSession):
    sync_session_class = ShopSession

    async def order(self, value: str) -> EventModel:
        return await self.run_sync(lambda session: session.order(value))  # type: ignore[attr-defined]


ASYNC_FACTORIES = [
    AsyncShopSession,
    async_sessionmaker(class_=AsyncShopSession, expire_on_commit=False, tenant="none"),
    async_sessionmaker(class_=AsyncShopSession, sync_session_class=ShopSession),
]


@pytest.mark.parametrize("factory", ASYNC_FACTORIES)
def test_an_async_session_of_the_applications_own_kind(sqlite_place: AsyncPlace, factory: Any) -> None:
    async def main() -> None:
        async with sqlite_place.dual_write(session_factory=factory) as dual_write, dual_write.transaction() as tx:
            session = tx.session
            assert isinstance(session, AsyncShopSession)
            await session.order("tea")
            await tx.produce("events", "none: tea")
            assert (await session.scalars(select(EventModel.value))).all() == ["none: tea"]

    run(main())
    assert sqlite_place.in_both("none: tea")


def test_sqlmodels_async_session_joins(sqlite_place: AsyncPlace) -> None:
    sqlmodel.SQLModel.metadata.create_all(sqlite_place.seen)

    async def put(tx: AsyncTransaction) -> None:
        assert isinstance(tx.session, SQLModelAsyncSession)
        tx.session.add(Hero(name="Ada"))
        assert (await tx.session.exec(sqlmodel.select(Hero.name))).all() == ["Ada"]
        await tx.produce("heroes", "Ada")

    async def main() -> None:
        factory = async_sessionmaker(class_=SQLModelAsyncSession)
        async with sqlite_place.dual_write(session_factory=factory) as dual_write, dual_write.transaction() as tx:
            await put(tx)

    run(main())
    assert sqlite_place.kafka.committed == ["Ada"]
    with sqlmodel.Session(sqlite_place.seen) as session:
        assert session.exec(sqlmodel.select(Hero.name)).all() == ["Ada"]


def test_an_async_session_that_makes_a_session_of_its_own_is_refused(sqlite_place: AsyncPlace) -> None:
    """Its rows would be no part of the unit."""

    class DeafSession(AsyncSession):
        def __init__(self, **_: Any) -> None:
            super().__init__()

    async def put(tx: AsyncTransaction) -> None:
        await tx.produce("events", "one")
        tx.session.add(EventModel(value="one"))

    async def main() -> None:
        async with sqlite_place.dual_write(session_factory=DeafSession) as dual_write, dual_write.transaction() as tx:
            await put(tx)

    with pytest.raises(ConfigurationError, match=r"DeafSession.__init__\(\) must hand sync_session_class on"):
        run(main())
    assert sqlite_place.in_both()


def test_what_makes_no_async_session_is_refused(sqlite_place: AsyncPlace) -> None:
    async def main() -> None:
        async with sqlite_place.dual_write(session_factory=sessionmaker()):
            raise AssertionError("not reached")

    with pytest.raises(ConfigurationError, match="give an async_sessionmaker, or a subclass of AsyncSession"):
        run(main())


def test_a_unit_without_its_session_makes_none(make_dual_write: Make, sqlite_engine: Engine) -> None:
    class Never(Session):
        def __init__(self, **_: Any) -> None:
            raise AssertionError("not needed")

    with make_dual_write(session_factory=Never).transaction() as tx:
        tx.execute(insert(events).values(value="one"))
    assert stored_values(sqlite_engine) == ["one"]
