"""The exception that leaves the block of a unit of work: it says whether the unit was committed.

A signal handler's exception (for example a time limit) may come at any instruction, so also after the database has
committed. The caller always gets it, as the code that set the limit relies on it: as it is or, after the decision, as
the cause of a UnitCommitted.
"""

from asyncio import CancelledError
from collections.abc import Callable

from sqlalchemy.exc import PendingRollbackError

from dualwrite.coordinator.concurrency.step_errors import is_step_error
from dualwrite.coordinator.rules.machine import Result
from dualwrite.coordinator.steps.driver import UnitDriver
from dualwrite.errors import CommittedError, DatabaseUnavailableError, InDoubtError, UnitCommitted, committed_interrupt

_Left = (CancelledError, GeneratorExit)
"""Exceptions with a special meaning under asyncio: see AsyncDualWrite."""


class OutgoingErrors:
    """The exceptions that leave the units of work of one application.

    :param translate: the library's error for one of the database's, or that error itself
        (sql/engine/database_errors.py).
    """

    def __init__(self, application: str, translate: Callable[[BaseException], BaseException]) -> None:
        self._application = application
        self._translate = translate

    def raise_outcome(self, driver: UnitDriver, error: BaseException | None) -> None:
        """Raise the exception for the caller of a unit of work that has ended, unless it is ``error``, on its way
        already.

        :raises CommittedError: if the unit was committed, and a time limit came during its end.
        :raises InDoubtError: if it is not known whether it was committed.
        """
        raised = driver.interrupt
        if raised is None:
            if error is None and driver.machine.result is Result.SUCCEEDED:
                return
            raised = driver.machine.error if error is None else error
        assert raised is not None
        leaving_error = self.of_block(driver, error) if raised is error else self.of(driver, raised)
        if leaving_error is error:
            return
        if leaving_error is raised:
            raise raised
        raise leaving_error from raised

    def of_block(self, driver: UnitDriver, error: BaseException) -> BaseException:
        """The exception that leaves the block in place of ``error``, which the user's code raised: the library's if
        that is the loss of the unit's own connection or one that SQLAlchemy raises because of it, and ``error`` itself
        otherwise."""
        if not driver.has_lost_database:
            return error
        if isinstance(error, PendingRollbackError):
            return DatabaseUnavailableError("the connection to the database was lost, and the error was caught")
        translated = self._translate(error)
        return translated if isinstance(translated, DatabaseUnavailableError) else error

    def of(self, driver: UnitDriver | None, raised: BaseException) -> BaseException:
        """The exception that leaves the block in place of ``raised``, which the unit's end raised; ``raised`` itself if
        nothing was committed and it is not one of the database's that have a meaning."""
        if isinstance(raised, UnitCommitted | InDoubtError):
            return raised
        if driver is None:
            return self._translate(raised)
        result = driver.machine.result
        if result is Result.SUCCEEDED or (result is Result.DATABASE_FAILED and driver.database_committed):
            return _committed(raised)
        if result is Result.IN_DOUBT:
            return _in_doubt(raised, in_doubt(self._application, driver.machine.error))
        translated = self._translate(raised)
        is_answered = is_step_error(raised) and not isinstance(translated, DatabaseUnavailableError)
        if result is Result.DATABASE_FAILED and driver.commit_was_sent and not is_answered:
            return _in_doubt(raised, _in_doubt_alone(self._application, raised))
        return translated


def _committed(raised: BaseException) -> BaseException:
    if isinstance(raised, _Left):
        return raised
    if not isinstance(raised, Exception):
        return committed_interrupt(raised)
    return CommittedError(
        f"the unit of work was committed, and then {raised!r} was raised at the end of its block: do not run the unit "
        "again"
    )


def _in_doubt(raised: BaseException, doubt: InDoubtError) -> BaseException:
    """An interrupt keeps its class, so that its handlers catch it; its cause is ``doubt``."""
    if isinstance(raised, Exception | CancelledError):
        return doubt
    raised.__cause__ = doubt
    return raised


def in_doubt(application: str, error: BaseException | None) -> InDoubtError:
    """The InDoubtError of a unit of work whose COMMIT failed with ``error``."""
    return InDoubtError(
        f"a unit of work of application {application!r} is in both or in neither, and it is not known which: the "
        f"COMMIT failed ({error}), and the database could not be asked. Do not run it again before recovery: it ends "
        "both sides alike"
    )


def _in_doubt_alone(application: str, error: BaseException) -> InDoubtError:
    return InDoubtError(
        f"{error!r} was raised during the COMMIT of a unit of work of application {application!r} that produced "
        "nothing: its rows may be in the database or not. Check that before you run it again"
    )
