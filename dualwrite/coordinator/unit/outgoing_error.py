"""Which exception leaves the block of a unit of work: it says whether the unit was committed.

An exception of a signal handler (a time limit, say) may strike at any instruction, so also after the database has
committed. It is raised always: whoever set the limit counts on it. After the decision it is raised as a UnitCommitted.
"""

import asyncio

from dualwrite.coordinator.concurrency.step_errors import is_own
from dualwrite.coordinator.rules.machine import Result
from dualwrite.coordinator.unit.driver import UnitDriver
from dualwrite.errors import CommittedError, InDoubtError, UnitCommitted, committed_interrupt

_Left = (asyncio.CancelledError, GeneratorExit)
"""What has a meaning of its own under asyncio: see AsyncDualWrite."""


def raise_outcome(application: str, driver: UnitDriver, error: BaseException | None) -> None:
    """Raise what the caller of a unit of work that has ended must know, unless that is ``error``, on its way already.

    :raises CommittedError: if the unit was committed, and a limit struck its end.
    :raises InDoubtError: if it is not known whether it was committed.
    """
    machine = driver.machine
    raised = driver.interrupt
    if raised is None:
        if error is not None or machine.result is Result.SUCCEEDED:
            return
        raised = machine.error
    assert raised is not None
    if raised is error:
        return
    told = truth(application, driver, raised)
    if told is raised:
        raise raised
    raise told from raised


def truth(application: str, driver: UnitDriver | None, raised: BaseException) -> BaseException:
    """What is to leave the block in place of ``raised``: itself, if nothing of the unit of work was committed."""
    if driver is None or isinstance(raised, UnitCommitted | InDoubtError):
        return raised
    result = driver.machine.result
    if result is Result.SUCCEEDED or (result is Result.DATABASE_FAILED and driver.database_committed):
        return _committed(raised)
    if result is Result.IN_DOUBT:
        return _in_doubt(raised, in_doubt(application, driver.machine.error))
    if result is Result.DATABASE_FAILED and driver.commit_was_asked and not is_own(raised):
        return _in_doubt(raised, _in_doubt_alone(application, raised))
    return raised


def _committed(raised: BaseException) -> BaseException:
    if isinstance(raised, _Left):
        return raised
    if not isinstance(raised, Exception):
        return committed_interrupt(raised)
    return CommittedError(
        f"the unit of work was committed, and then {raised!r} struck the end of its block: do not run the unit again"
    )


def _in_doubt(raised: BaseException, doubt: InDoubtError) -> BaseException:
    """An interrupt stays what it is, for what catches it, and has the doubt as its cause."""
    if isinstance(raised, Exception | asyncio.CancelledError):
        return doubt
    raised.__cause__ = doubt
    return raised


def in_doubt(application: str, error: BaseException | None) -> InDoubtError:
    """What is raised of a unit of work whose outcome is not known, as its COMMIT failed with ``error``."""
    return InDoubtError(
        f"a unit of work of application {application!r} is in both or in neither, and it is not known which: the "
        f"COMMIT failed ({error}), and the database could not be asked. Do not run it again before recovery: it ends "
        "both sides alike"
    )


def _in_doubt_alone(application: str, error: BaseException) -> InDoubtError:
    return InDoubtError(
        f"a unit of work of application {application!r}, which produced nothing, was struck by {error!r} in the middle "
        "of its COMMIT: whether its rows are in the database, the database alone can say. Look before you run it again"
    )
