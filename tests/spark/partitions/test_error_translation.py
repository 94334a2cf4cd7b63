"""What a task raised is raised on the driver, however this release of PySpark hands it on."""

from types import SimpleNamespace

import psycopg
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from sqlalchemy.exc import DataError, DBAPIError, InternalError, OperationalError, ProgrammingError

from dualwrite.client.librdkafka.deadline_calls import WedgedError
from dualwrite.errors import (
    BatchChangedError,
    ConfigurationError,
    DatabaseUnavailableError,
    DecisionLostError,
    DualWriteError,
    FencedError,
    InputError,
    InvalidTransactionStateError,
    KafkaRefusedError,
)
from dualwrite.spark.error_translation import as_raised_in_the_task, database_errors_translated

JOB = "org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times"
PYTHON = "org.apache.spark.api.python.PythonException: Traceback (most recent call last):"
CAUSE = """  File "loading.py", line 1, in _copy
dualwrite.errors.ConfigurationError: what was the cause

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "worker.py", line 2044, in main
"""
JAVA = "\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:581)"


class OfJavaError(Py4JJavaError):
    """What PySpark 4.0 lets through where an RDD's job fails. Its text is asked of the JVM."""

    def __init__(self, text: str) -> None:
        Exception.__init__(self, text)
        self._text = text

    def __str__(self) -> str:
        return self._text


def of_java(line: str) -> Exception:
    raised = f"{PYTHON}\n{CAUSE}{line}\n\n{JAVA}\n\t... 1 more\n"
    return OfJavaError(f"An error occurred while calling z:collectAndServe.\n: {JOB}: {raised}Caused by: {raised}")


def of_spark(line: str) -> Exception:
    return PySparkException(f"\n  An exception was thrown from the Python worker.\nTraceback:\n{CAUSE}{line}\n")


def raised_for(error: Exception) -> BaseException:
    with pytest.raises(Exception) as raised, as_raised_in_the_task():  # noqa: PT011 - the callers look at it
        raise error
    return raised.value


@pytest.mark.parametrize("handed_on", [of_java, of_spark])
def test_the_last_error_of_ours_is_raised_with_its_own_text(handed_on: type[Exception]) -> None:
    error = handed_on("dualwrite.errors.InputError: partition 3: the database refuses a row: too long")
    raised = raised_for(error)
    assert type(raised) is InputError
    assert str(raised) == "partition 3: the database refuses a row: too long"
    assert raised.__cause__ is error
    assert type(raised_for(handed_on("dualwrite.errors.BatchChangedError: other rows"))) is BatchChangedError


@pytest.mark.parametrize("handed_on", [of_java, of_spark])
@pytest.mark.parametrize("name", ["KafkaRefusedError", "ErrorOfALaterRelease"])
def test_an_error_that_cannot_be_made_from_its_text_is_a_plain_dual_write_error(
    handed_on: type[Exception], name: str
) -> None:
    assert type(raised_for(handed_on(f"dualwrite.errors.{name}: no"))) is DualWriteError


@pytest.mark.parametrize("handed_on", [of_java, of_spark])
def test_a_brokers_refusal_keeps_its_code(handed_on: type[Exception]) -> None:
    error = KafkaRefusedError("1 record not acknowledged: t-5", 3, "UNKNOWN_TOPIC_OR_PARTITION")
    raised = raised_for(handed_on(f"dualwrite.errors.KafkaRefusedError: {error}"))
    assert isinstance(raised, KafkaRefusedError)
    assert (raised.code, raised.name, str(raised)) == (error.code, error.name, str(error))


@pytest.mark.parametrize("handed_on", [of_java, of_spark])
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("client.librdkafka.deadline_calls.WedgedError", WedgedError),
        ("coordinator.rules.lease.LeaseLostError", FencedError),  # it has its lease, too
        ("coordinator.rules.lease.LeaseContradictedError", DecisionLostError),
        ("coordinator.sql.dialects.unit_transactions.TransactionEndedError", InvalidTransactionStateError),
    ],
)
def test_an_error_that_another_module_defines_is_raised_and_not_the_cause_of_it(
    handed_on: type[Exception], name: str, kind: type[DualWriteError]
) -> None:
    raised = raised_for(handed_on(f"dualwrite.{name}: not in time"))
    assert (type(raised), str(raised)) == (kind, "not in time")


@pytest.mark.parametrize("name", ["wire.codec.MalformedMessageError", "a_later.release.OneError", "__main__.OneError"])
def test_an_error_of_the_librarys_that_is_no_public_one_is_passed_over(name: str) -> None:
    error = OfJavaError(f"{JOB}: {PYTHON}\ndualwrite.{name}: no")
    assert raised_for(error) is error


@pytest.mark.parametrize("kind", [OfJavaError, PySparkException, ValueError])
def test_an_error_that_is_not_the_librarys_is_raised_unchanged(kind: type[Exception]) -> None:
    error = kind(f"{JOB}: {PYTHON}\nValueError: of the user's own function")
    assert raised_for(error) is error


@pytest.mark.parametrize("handed_on", [of_java, of_spark])
def test_a_module_that_the_executors_lack_is_named(handed_on: type[Exception]) -> None:
    raised = raised_for(handed_on("ModuleNotFoundError: No module named 'sqlalchemy.orm'"))
    assert type(raised) is ConfigurationError
    assert str(raised).startswith("the executors' Python has no module sqlalchemy: install the driver's")


@pytest.mark.parametrize("handed_on", [of_java, of_spark])
def test_the_librarys_error_is_raised_rather_than_the_missing_module_behind_it(handed_on: type[Exception]) -> None:
    chain = "ModuleNotFoundError: No module named 'lz4'\n\ndualwrite.errors.InputError: compression.type lz4 needs lz4"
    raised = raised_for(handed_on(chain))
    assert type(raised) is InputError
    assert str(raised) == "compression.type lz4 needs lz4"


class PsycopgStyleError(Exception):
    """As psycopg's errors are."""

    def __init__(self, said: str, context: str | None) -> None:
        super().__init__(said)
        self.diag = SimpleNamespace(context=context)


@pytest.mark.parametrize(
    ("context", "column"),
    [
        ('COPY t, line 3, column item: "xxxxxx"', " (column 'item')"),
        ('COPY "a b", line 3, column a, b: "x: "y""', " (column 'a, b')"),
        ("COPY t, line 3, column item: null input", " (column 'item')"),
        ("COPY t, line 3", ""),
        ("PL/pgSQL function no() line 1 at RAISE", ""),
        (None, ""),
    ],
)
def test_a_refusal_names_the_column_as_far_as_the_database_does(context: str | None, column: str) -> None:
    error = DataError("COPY", None, PsycopgStyleError("value too long\nCONTEXT: a second line", context))
    with pytest.raises(InputError) as raised, database_errors_translated("partition 3"):
        raise error
    assert str(raised.value) == f"partition 3: the database refuses a row: value too long{column}"
    assert raised.value.__cause__ is error


class DuplicateStyleError(Exception):
    """As psycopg's errors for a constraint are."""

    def __init__(self, sqlstate: str, detail: str | None) -> None:
        super().__init__("a constraint is violated")
        self.diag = SimpleNamespace(context=None, sqlstate=sqlstate, message_detail=detail)


@pytest.mark.parametrize(
    ("sqlstate", "detail", "key"),
    [
        ("23505", "Key (id)=(5)\nalready exists.", " (Key (id)=(5) already exists.)"),
        ("23505", "Key (id)=(" + "x" * 1000, " (Key (id)=(" + "x" * 190 + ")"),
        ("23505", None, ""),
        ("23502", "Failing row contains (the, whole, row).", ""),
    ],
)
def test_a_duplicate_key_is_named_and_no_whole_row_is(sqlstate: str, detail: str | None, key: str) -> None:
    error = DataError("INSERT", None, DuplicateStyleError(sqlstate, detail))
    with pytest.raises(InputError) as raised, database_errors_translated("job 'a'"):
        raise error
    assert str(raised.value) == f"job 'a': the database refuses a row: a constraint is violated{key}"


@pytest.mark.parametrize("number", [1644, 3819, 4025])
def test_a_trigger_and_a_check_of_mariadb_refuse_a_row(number: int) -> None:
    """PyMySQL calls them operational errors, as it does a lost server."""
    error = OperationalError("INSERT", None, Exception(number, "CONSTRAINT `t.n` failed"))
    with pytest.raises(InputError) as raised, database_errors_translated("job 'a'"):
        raise error
    assert "the database refuses a row: " in str(raised.value)


@pytest.mark.parametrize("sqlstate", ["25006", "25P03", "25P04", "26000", "42P05"])
def test_an_error_of_postgresqls_server_refuses_no_row(sqlstate: str) -> None:
    """SQLAlchemy has the same class for a read-only server and another client's prepared statement as for a refusal."""
    raised_by_driver = psycopg.errors.lookup(sqlstate)("cannot execute")
    error = DBAPIError.instance("COPY", None, raised_by_driver, psycopg.Error)
    assert isinstance(error, InternalError | ProgrammingError)
    with pytest.raises(DBAPIError) as passed, database_errors_translated("job 'a'"):
        raise error
    assert passed.value is error


def test_only_a_connection_that_is_gone_is_a_loss() -> None:
    gone = OperationalError("COPY", None, Exception("server closed the connection"), connection_invalidated=True)
    with pytest.raises(DatabaseUnavailableError) as raised, database_errors_translated("job 'a'"):
        raise gone
    assert str(raised.value).startswith("job 'a': the database was lost: server closed the connection; ")
    for error in (OperationalError("COPY", None, Exception("deadlock detected")), KeyboardInterrupt(), ValueError()):
        with pytest.raises(type(error)) as passed, database_errors_translated("job 'a'"):
            raise error
        assert passed.value is error
