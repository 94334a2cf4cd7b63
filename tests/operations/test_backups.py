"""A database and its broker, copied while both are still and started elsewhere, go on where the originals stood."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from tests.support.coordinator.event_table import stored_values
from tests.support.forked import ForkedKafkaBroker
from tests.support.operations.places import OperationsSite, command


@pytest.fixture
def original(tmp_path: Path) -> Iterator[OperationsSite]:
    """A database and a broker in one directory."""
    (tmp_path / "original").mkdir()
    with ForkedKafkaBroker(tmp_path / "original" / "broker") as broker:
        site = OperationsSite(f"sqlite:///{tmp_path / 'original' / 'app.db'}", broker)
        yield site
        site.close()


@pytest.mark.parametrize("step", ["COMMIT_DATABASE", "COMMIT_KAFKA"])
def test_both_copied_together_go_on_as_one(original: OperationsSite, tmp_path: Path, step: str) -> None:
    """The application died in the middle of a unit of work: before or after the database had decided it."""
    original.write("first")
    original.leave("second", step)
    original.close()
    original.broker.stop()
    shutil.copytree(tmp_path / "original", tmp_path / "copy")
    shutil.rmtree(tmp_path / "original")
    expected = ["first", "second"] if step == "COMMIT_KAFKA" else ["first"]
    with ForkedKafkaBroker(tmp_path / "copy" / "broker") as broker:
        url = f"sqlite:///{tmp_path / 'copy' / 'app.db'}"
        place = ("--db", url, "--bootstrap-servers", broker.bootstrap_servers, "--application", original.application)
        listed = command("transactions", "list", *place)
        assert ("commit" if step == "COMMIT_KAFKA" else "abort") in listed.out
        recovered = command("recover", *place)
        assert (recovered.code, recovered.err) == (0, "")
        engine = create_engine(url)
        assert stored_values(engine) == expected
        engine.dispose()
        seen = [record.value for record in broker.read(original.topic)]
        assert seen == [value.encode() for value in expected]
        assert "nothing to do" in command("transactions", "list", *place).out
