"""What the engine and its drivers say to each other: an operation ends once, and tells how."""

import pytest

from dualwrite.client.engine.contract import Operation
from dualwrite.errors import KafkaUnavailableError


def test_an_operation_that_succeeds_gives_its_result() -> None:
    operation, done = Operation(), []
    operation.when_done(done.append)
    assert not operation.is_done
    operation.succeed(7)
    assert operation.is_done
    assert operation.outcome() == 7
    assert done == [operation]


def test_an_operation_that_fails_raises_its_error() -> None:
    operation, done = Operation(), []
    operation.fail(KafkaUnavailableError("gone"))
    operation.when_done(done.append)
    assert done == [operation]
    with pytest.raises(KafkaUnavailableError, match="gone"):
        operation.outcome()


def test_an_operation_ends_once() -> None:
    operation = Operation()
    operation.succeed()
    with pytest.raises(AssertionError, match="twice"):
        operation.fail(KafkaUnavailableError("too late"))


def test_an_operation_under_way_has_no_outcome() -> None:
    with pytest.raises(AssertionError, match="before"):
        Operation().outcome()
