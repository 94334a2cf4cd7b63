"""The wheel where it is installed: alone, and with its dependencies."""

import re
import sys
from pathlib import Path

import pytest

import dualwrite
from tests.support.distributions import HOME, add_other_packages, distributions, environment_with, run

USER_PROGRAM = """
from sqlalchemy import create_engine
from dualwrite import DualWrite

with DualWrite(create_engine("sqlite://"), {}, application="shop") as dw:
    with dw.transaction() as tx:
        reveal_type(tx)
        tx.produce("orders", key=b"tea", value=b"one cup")
        tx.produce(7)
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment that has the wheel and nothing else."""
    pytest.importorskip("build", reason="requirements/dev.txt is not installed")
    pytest.importorskip("hatchling", reason="requirements/build.txt is not installed")
    wheel = distributions(HOME, tmp_path_factory.mktemp("dist")).wheel
    return environment_with(wheel, tmp_path_factory.mktemp("alone"))


@pytest.fixture(scope="module")
def programs_beside_others(programs: Path) -> Path:
    """The same environment, which can now import every other package of the present one."""
    add_other_packages(programs)
    return programs


@pytest.fixture(autouse=True)
def no_checkout_on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)


def test_without_dependencies_the_command_and_the_package_tell_their_version(programs: Path, tmp_path: Path) -> None:
    assert run(str(programs / "dualwrite"), "--version", cwd=tmp_path) == f"dualwrite {dualwrite.__version__}\n"
    query = "import dualwrite; print(dualwrite.__version__, dualwrite.__file__)"
    version, file = run(str(programs / "python"), "-c", query, cwd=tmp_path).split()
    assert version == dualwrite.__version__
    assert file.startswith(str(programs.parent))


def test_the_program_of_the_readme_runs(programs_beside_others: Path, tmp_path: Path) -> None:
    found = re.search(r"```python\n(.*?)```", (HOME / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    (tmp_path / "program.py").write_text(found[1] + "\nimport dualwrite; print(dualwrite.__file__)\n", encoding="utf-8")
    committed, file = run(str(programs_beside_others / "python"), "program.py", cwd=tmp_path).splitlines()
    assert committed.startswith("committed together")
    assert file.startswith(str(programs_beside_others.parent))


def test_the_command_finds_the_migrations_in_the_wheel(programs_beside_others: Path, tmp_path: Path) -> None:
    url = ("--db", f"sqlite:///{tmp_path}/shop.db")
    run(str(programs_beside_others / "dualwrite"), "db", "upgrade", *url, cwd=tmp_path)
    assert "0008" in run(str(programs_beside_others / "dualwrite"), "db", "current", *url, cwd=tmp_path)


def test_mypy_sees_the_types(programs_beside_others: Path, tmp_path: Path) -> None:
    """The types of the wheel: not of this checkout, and not Any."""
    (tmp_path / "program.py").write_text(USER_PROGRAM, encoding="utf-8")
    interpreter = ("--python-executable", str(programs_beside_others / "python"))
    with pytest.raises(AssertionError) as raised:
        run(sys.executable, "-m", "mypy", "--strict", *interpreter, "program.py", cwd=tmp_path)
    said = str(raised.value)
    assert 'Revealed type is "dualwrite.coordinator.unit.transaction.Transaction"' in said
    assert 'Argument 1 to "produce" of "Transaction" has incompatible type "int"; expected "str"' in said
    assert "Found 1 error in 1 file" in said
