"""What a user is told of what went wrong in a task, or in the database."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy.exc import DBAPIError

from dualwrite import errors
from dualwrite.errors import ConfigurationError, DualWriteError, InputError

_NO_MODULE = re.compile(r"^ModuleNotFoundError: No module named '(\w+)", re.MULTILINE)
_IN_A_TASK = re.compile(r"^dualwrite\.errors\.(\w+): (.*)$", re.MULTILINE)


def refused(what: str, error: DBAPIError) -> InputError:
    """The database refuses a row of ``what``; why, in one line."""
    return InputError(f"{what}: the database refuses a row: {first_line(error)}")


def first_line(error: DBAPIError) -> str:
    """What the driver said, without SQLAlchemy's statement and link."""
    return str(error.orig).strip().partition("\n")[0]


@contextmanager
def as_raised_in_the_task() -> Iterator[None]:
    """What a task raised comes as text, at the end of Python's traceback. For a job over an RDD PySpark 4.0 hands on
    Java's exception as it is."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        text = str(error)
        raised = max((*_IN_A_TASK.finditer(text), *_NO_MODULE.finditer(text)), key=re.Match.start, default=None)
        if raised is None:
            raise
        if raised.re is _NO_MODULE:
            raise ConfigurationError(
                f"the executors' Python has no module {raised[1]}: install there what the driver has, "
                "or let PYSPARK_PYTHON name an interpreter that has it"
            ) from error
        name, message = raised.groups()
        kind = getattr(errors, name, DualWriteError)
        if kind is errors.KafkaRefusedError:  # which is made of more than a message
            kind = DualWriteError
        raise kind(message) from error
