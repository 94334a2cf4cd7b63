"""How the environments of ``make lowest``, ``make base`` and ``make highest`` are made."""

from email.message import Message
from pathlib import Path

import pytest

from tests.distribution import versions
from tests.support.distributions import HOME, Distributions


def requiring(*requirements: str) -> Distributions:
    """A wheel that requires these."""
    built = Distributions(Path("wheel"), Path("sdist"))
    metadata = Message()
    for requirement in requirements:
        metadata["Requires-Dist"] = requirement
    built.__dict__["metadata"] = metadata
    return built


def test_the_base_is_what_no_extra_brings_at_its_lower_bound_with_what_tests_need_of_it() -> None:
    built = requiring(
        "alembic>=1.18",
        "sqlalchemy<2.2,>=2.0.40",
        "kafka-python<3.1,>=3.0.12; python_version > '3.9'",
        "sqlalchemy[asyncio]<2.2,>=2.0.58; extra == 'asyncio'",
        "kafka-python[zstd,lz4]; extra == 'test'",
        "uvloop>=0.21; (sys_platform != 'win32') and extra == 'broker'",
    )
    lowest = ["alembic==1.18", "sqlalchemy[asyncio]==2.0.40", "kafka-python[lz4,zstd]==3.0.12"]
    assert versions.lowest_of_the_base(built) == lowest


def test_the_tests_are_copied_without_the_package(tmp_path: Path) -> None:
    tree = versions.copy_tests(tmp_path / "tree")
    assert (tree / "tests" / "conftest.py").read_bytes() == (HOME / "tests" / "conftest.py").read_bytes()
    assert not {"dualwrite", "migrations", "build"} & {path.name for path in tree.iterdir()}
    assert list(tree.rglob("__pycache__")) == []


@pytest.mark.parametrize("path", versions.ABOUT_THE_CHECKOUT + versions.ABOVE_THE_BASE)
def test_what_is_left_out_is_there(path: str) -> None:
    assert (HOME / path).exists()


def test_every_run_has_a_target_of_make() -> None:
    makefile = (HOME / "Makefile").read_text(encoding="utf-8")
    assert f"\n{' '.join(versions.RESOLUTIONS)}: $(READY)\n" in makefile
