"""The plugin as users get it: from a wheel, and found by pytest itself."""

import subprocess
from pathlib import Path

import pytest

from tests.support.distributions import HOME, add_other_packages, distributions, environment_with, run

SUITE = """
import dualwrite
from sqlalchemy import text

def test_both_sides(dualwrite, kafka_broker, kafka_topic):
    with dualwrite.transaction() as tx:
        tx.execute(text("CREATE TABLE orders (item TEXT)"))
        tx.produce(kafka_topic, "tea")
    assert [record.value for record in kafka_broker.read(kafka_topic)] == [b"tea"]

def test_it_is_the_wheels_package(request):
    assert request.config.pluginmanager.has_plugin("dualwrite")
    assert dualwrite.__file__.startswith(SITE)
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The interpreter of a new environment with the wheel in it, and every other package from the present one."""
    pytest.importorskip("build", reason="requirements/dev.txt is not installed")
    pytest.importorskip("hatchling", reason="requirements/build.txt is not installed")
    wheel = distributions(HOME, tmp_path_factory.mktemp("dist")).wheel
    programs = environment_with(wheel, tmp_path_factory.mktemp("installed"))
    add_other_packages(programs)
    return str(programs / "python")


@pytest.mark.slow
def test_a_wheel_brings_the_plugin_to_a_strict_suite(
    installed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    site = str(Path(installed).parents[1])
    (tmp_path / "test_shop.py").write_text(f"SITE = {site!r}\n{SUITE}", encoding="utf-8")
    assert "2 passed" in run(installed, "-m", "pytest", "-W", "error", cwd=tmp_path)
    assert (
        "error"
        in subprocess.run(
            [installed, "-m", "pytest", "-p", "no:dualwrite"], cwd=tmp_path, capture_output=True, text=True, check=False
        ).stdout
    )
