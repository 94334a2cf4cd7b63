"""AsyncDualWrite: the same coordinator for applications on asyncio, with an AsyncEngine. greenlets.py explains how."""

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncEngine

from dualwrite.coordinator.aio.consumers import AsyncSeekingConsumers
from dualwrite.coordinator.aio.manager import AsyncUnitManager
from dualwrite.coordinator.aio.session import AsyncSessionFactory, async_unit_sessions
from dualwrite.coordinator.aio.transaction import AsyncBlock, AsyncTransaction
from dualwrite.coordinator.manager.settings import Completion, ManagerSettings
from dualwrite.coordinator.ports.kafka import KafkaParticipant
from dualwrite.coordinator.process.greenlets import greenlet_spawn, wait_for
from dualwrite.coordinator.process.this_process import THIS_PROCESS
from dualwrite.coordinator.rules.producer_names import ProducerName
from dualwrite.coordinator.rules.recovery_decision import Outcome
from dualwrite.coordinator.rules.two_phase import TwoPhase
from dualwrite.coordinator.slots.slot import Counters
from dualwrite.coordinator.slots.usage import PoolSettings, Usage
from dualwrite.coordinator.sql.engine.error_meanings import transient_errors_of
from dualwrite.coordinator.sql.outcome_store import HeuristicOutcome, acknowledge, outcomes
from dualwrite.coordinator.steps.observers import Observer, no_observer
from dualwrite.coordinator.steps.retry import Retrying, require_tx, with_tx
from dualwrite.coordinator.unit.block import NamesTheAsyncBlock, open_unit
from dualwrite.errors import ConfigurationError

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")


class AsyncTransactionalDecorator(Protocol):
    """What ``dw.transactional(retries=…)`` returns; see AsyncDualWrite.transactional."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[AsyncTransaction, P], Awaitable[R]], /
    ) -> Callable[P, Coroutine[Any, Any, R]]: ...

    @overload
    def __call__(
        self, function: Callable[Concatenate[S, AsyncTransaction, P], Awaitable[R]], /
    ) -> Callable[Concatenate[S, P], Coroutine[Any, Any, R]]: ...


class AsyncDualWrite(AsyncSeekingConsumers, NamesTheAsyncBlock):
    """DualWrite for asyncio: ``async with dw.transaction() as tx``, on an AsyncEngine.

    Units of work, slots, recovery and errors are the same as DualWrite's; an application may have processes of both
    kinds. All tasks must run in one event loop, the one of the first use; AsyncDualWrite does not block it. A unit of
    work belongs to the task that begins it.

    If a task is cancelled before its unit of work is decided, the unit is rolled back on both sides. CancelledError
    never leaves a block whose unit of work was committed: the block is left normally, and the task is cancelled at its
    next ``await``. If an ``asyncio.timeout()`` around exactly this block requested the cancellation, it has no effect.
    The end of a block is not interrupted: it may last as long as Kafka's timeouts.

    Delivery callbacks that are given to ``produce()`` are called in the event loop. A callback that is set in ``kafka``
    is called in any thread, as is ``on_step`` during recovery.

    :param engine: an AsyncEngine on SQLite (aiosqlite, a file), PostgreSQL (asyncpg or psycopg), MariaDB or MySQL
        (aiomysql or asyncmy), after ``dualwrite db upgrade``. The library's own threads open connections with the same
        settings, outside the engine's pool.
    :param session_factory: makes ``tx.session``: an async_sessionmaker, or a subclass of AsyncSession.

    All other parameters are DualWrite's.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        kafka: Mapping[str, Any],
        *,
        application: str,
        pool_size: int = 64,
        acquire_timeout: float = 30.0,
        lease_timeout: float = 30.0,
        database_timeout: float = 60.0,
        producer: ProducerName | None = None,
        two_phase: TwoPhase = "keep-prepared",
        replay: bool = False,
        completion: Completion = "await",
        schema: str | None = None,
        session_factory: AsyncSessionFactory | None = None,
        participant: Callable[[Mapping[str, Any]], KafkaParticipant] | None = None,
        on_step: Callable[[str], None] | None = None,
    ) -> None:
        pool = PoolSettings(application, pool_size, acquire_timeout, lease_timeout, database_timeout)
        observe = on_step or no_observer
        session_class, sessions = async_unit_sessions(session_factory)
        self._manager = AsyncUnitManager(
            _asynchronous(engine),
            ManagerSettings(
                kafka,
                pool,
                producer,
                two_phase,
                replay,
                schema,
                participant,
                observe,
                completion,
                sessions=sessions,
            ),
            session_class,
        )

    @property
    def _seeker(self) -> AsyncUnitManager:
        return self._manager

    @property
    def producer(self) -> str | None:
        """The producer in use; see DualWrite.producer."""
        return self._manager.producer

    @property
    def counters(self) -> Counters:
        """Counters of this process; see DualWrite.counters."""
        return self._manager.process.counters

    def transaction(self) -> AsyncBlock:
        """Make a unit of work, for ``async with dw.transaction() as tx``. Entering it runs recovery first, if needed.

        Raises the same errors as DualWrite.transaction(), and InvalidTransactionStateError in another event loop than
        that of the first use. Inside a unit of work of this AsyncDualWrite, in the same task, it joins that one.
        """
        return AsyncBlock(self._manager)

    @overload
    def transactional(
        self, function: Callable[Concatenate[AsyncTransaction, P], Awaitable[R]], /
    ) -> Callable[P, Coroutine[Any, Any, R]]: ...

    @overload
    def transactional(
        self, function: Callable[Concatenate[S, AsyncTransaction, P], Awaitable[R]], /
    ) -> Callable[Concatenate[S, P], Coroutine[Any, Any, R]]: ...

    @overload
    def transactional(self, /, *, retries: int) -> AsyncTransactionalDecorator: ...

    def transactional(self, function: Any = None, /, *, retries: int = 0) -> Any:
        """Decorate ``async def function(tx, …)`` so that each call ``await function(…)`` is a unit of work of its own.

        Like DualWrite.transactional, ``retries`` included.

        :raises ConfigurationError: if ``function`` is not a coroutine function.
        """
        is_transient = transient_errors_of(self._manager.engine.dialect)
        retrying = Retrying(
            retries, is_transient, lambda seconds: wait_for(asyncio.sleep(seconds)), THIS_PROCESS.chance
        )
        return functools.partial(self._decorated, retrying) if function is None else self._decorated(retrying, function)

    def _decorated(
        self, retrying: Retrying, function: Callable[Concatenate[AsyncTransaction, P], Awaitable[R]]
    ) -> Callable[P, Coroutine[Any, Any, R]]:
        if not inspect.iscoroutinefunction(function):
            name = getattr(function, "__qualname__", repr(function))
            raise ConfigurationError(f"{name} is not a coroutine function: decorate one that is defined by async def")
        require_tx(function)
        call = with_tx(function)

        @functools.wraps(function)
        async def unit_of_work(*args: P.args, **kwargs: P.kwargs) -> R:
            last: list[AsyncTransaction] = []

            async def once() -> R:
                async with AsyncBlock(self._manager, is_repeated=True) as tx:
                    last[:] = [tx]
                    return await call(tx, *args, **kwargs)

            if open_unit(self._manager) is not None:
                return await once()
            return await greenlet_spawn(self._manager.run_again, retrying, lambda: wait_for(once()), last)

        return unit_of_work

    @property
    def is_recovered(self) -> bool:
        """True once :meth:`recover` has succeeded in this process: for a readiness probe."""
        return self._manager.is_recovered

    async def recover(self, *, wait: bool = True) -> dict[str, Outcome]:
        """Recover; see DualWrite.recover. If the call is cancelled, recovery goes on in its thread. The database must
        be up, with ``wait=False`` too."""
        self._manager.check_loop()
        self._manager.require_outside()
        await greenlet_spawn(self._manager.know_database)
        if wait:
            return await greenlet_spawn(self._manager.in_thread, self._manager.recover)
        self._manager.recover_in_background()
        return {}

    def pending(self) -> int:
        """Count the units of work being completed in the background; see DualWrite.pending."""
        return self._manager.pending()

    @property
    def usage(self) -> Usage:
        """How this process uses its slots; see DualWrite.usage."""
        return self._manager.usage

    def add_observer(self, observer: Observer) -> None:
        """Add an observer, which is called in the event loop's thread; see DualWrite.add_observer."""
        self._manager.add_observer(observer)

    async def outcomes(self, acknowledged: bool = False) -> list[HeuristicOutcome]:
        """List the heuristic outcomes; see DualWrite.outcomes."""
        return await greenlet_spawn(
            outcomes, self._manager.engine, self._manager.settings.application, acknowledged=acknowledged
        )

    async def acknowledge(self, outcome: HeuristicOutcome | int, *, by: str) -> HeuristicOutcome:
        """Acknowledge a heuristic outcome; see DualWrite.acknowledge."""
        return await greenlet_spawn(acknowledge, self._manager.engine, outcome, by=by)

    async def wait_idle(self, timeout: float = 10.0) -> bool:
        """Wait until no unit of work is open and none is pending; see DualWrite.wait_idle."""
        self._manager.check_loop()
        self._manager.require_outside()
        return await greenlet_spawn(self._manager.in_thread, lambda: self._manager.wait_idle(timeout))

    async def close(self, timeout: float = 10.0) -> None:
        """Wait for the units of work of other tasks and release all, in any event loop; see DualWrite.close."""
        self._manager.require_outside()
        self._manager.end_orphans()
        await greenlet_spawn(self._manager.in_thread, lambda: self._manager.close(timeout))

    async def __aenter__(self) -> "AsyncDualWrite":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


def _asynchronous(engine: Any) -> AsyncEngine:
    """``engine``, if it is an AsyncEngine."""
    if not isinstance(engine, AsyncEngine):
        hint = "use DualWrite" if isinstance(engine, Engine) else "pass sqlalchemy.ext.asyncio.create_async_engine(url)"
        raise ConfigurationError(f"engine is a {type(engine).__name__}: {hint}")
    return engine
