"""The wheel and the sdist: each has what it needs, nothing else, and metadata that is true."""

import ast
import configparser
import re
import sys
from pathlib import Path

import pytest

import dualwrite
from tests.support.distributions import HOME, Distributions, build, distributions, run

PYPROJECT = (HOME / "pyproject.toml").read_text(encoding="utf-8")
IN_SDIST_ALONE = {".gitignore", "CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml"}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    pytest.importorskip("build", reason="requirements/dev.txt is not installed")
    pytest.importorskip("hatchling", reason="requirements/build.txt is not installed")
    return distributions(HOME, tmp_path_factory.mktemp("dist"))


def own_files() -> dict[str, bytes]:
    """The package's files and the migrations as the wheel names them."""
    files = {}
    for folder, name in ((HOME / "dualwrite", "dualwrite"), (HOME / "migrations", "dualwrite/migrations")):
        for path in folder.rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                files[f"{name}/{path.relative_to(folder).as_posix()}"] = path.read_bytes()
    return files


def words(setting: str) -> set[str]:
    """What ``setting = "…"`` of pyproject.toml says, wherever it stands."""
    return set(re.findall(rf'^{re.escape(setting)} = "(.*)"$', PYPROJECT, re.MULTILINE))


def test_the_wheel_has_the_package_and_the_migrations_and_no_other_module(built: Distributions) -> None:
    inside = {name: content for name, content in built.files.items() if ".dist-info/" not in name}
    assert inside == own_files()
    assert {"dualwrite/py.typed", "dualwrite/migrations/versions/0001_state_table.py"} <= inside.keys()
    others = {name for name in inside if not name.endswith(".py")}
    rooms_with_files = ("dualwrite/wire/schemas/", "dualwrite/console/static/", "dualwrite/console/templates/")
    assert {name for name in others if not name.startswith(rooms_with_files)} == {"dualwrite/py.typed"}


def test_the_wheel_has_the_licence_and_the_command(built: Distributions) -> None:
    info = f"dualwrite-{dualwrite.__version__}.dist-info"
    assert built.files[f"{info}/licenses/LICENSE"] == (HOME / "LICENSE").read_bytes()
    points = configparser.ConfigParser()
    points.read_string(built.files[f"{info}/entry_points.txt"].decode())
    assert dict(points["console_scripts"]) == {"dualwrite": "dualwrite.cli.main:main"}
    assert dict(points["pytest11"]) == {"dualwrite": "dualwrite.testing.pytest_plugin"}


def test_the_sdist_has_what_builds_the_wheel_and_no_tests(built: Distributions) -> None:
    package = {name.replace("dualwrite/migrations/", "migrations/") for name in own_files()}
    assert built.sources.keys() == package | IN_SDIST_ALONE


def test_the_sdist_builds_the_same_wheel_as_the_checkout(built: Distributions, tmp_path: Path) -> None:
    unpacked = tmp_path / "unpacked"
    for name, content in built.sources.items():
        (unpacked / name).parent.mkdir(parents=True, exist_ok=True)
        (unpacked / name).write_bytes(content)
    for source in (HOME, unpacked):
        target = tmp_path / f"of-{source.name}"
        target.mkdir()
        build(source, target, "--wheel")
        (wheel,) = target.glob("*.whl")
        assert wheel.read_bytes() == built.wheel.read_bytes()


@pytest.mark.slow
def test_twine_finds_nothing_to_say(built: Distributions) -> None:
    pytest.importorskip("twine", reason="requirements/dev.txt is not installed")
    twine = (sys.executable, "-m", "twine", "--no-color", "check", "--strict")
    said = run(*twine, str(built.wheel), str(built.sdist), cwd=HOME)
    verdicts = [word for word in said.split() if word.isupper()]  # long names are wrapped
    assert verdicts == ["PASSED", "PASSED"]


def test_the_metadata_names_version_licence_and_readme(built: Distributions) -> None:
    fields = built.metadata
    assert (fields["Name"], fields["Version"]) == ("dualwrite", dualwrite.__version__)
    assert (fields["License-Expression"], fields.get_all("License-File")) == ("Apache-2.0", ["LICENSE"])
    assert fields["Description-Content-Type"] == "text/markdown"
    assert fields.get_payload() == (HOME / "README.md").read_text(encoding="utf-8")


def test_the_python_versions_are_the_ones_that_the_checks_know(built: Distributions) -> None:
    """ruff and mypy check for the oldest one, and the running one is listed."""
    classifiers = "\n".join(built.metadata.get_all("Classifier", []))
    versions = re.findall(r"Python :: (\d)\.(\d+)$", classifiers, re.MULTILINE)
    listed = [tuple(map(int, version)) for version in versions]
    oldest, newest = listed[0], listed[-1]
    assert listed == [(3, minor) for minor in range(oldest[1], newest[1] + 1)]
    assert built.metadata["Requires-Python"] == f">={oldest[0]}.{oldest[1]}"
    assert words("target-version") == {f"py{oldest[0]}{oldest[1]}"}
    assert words("python_version") == {f"{oldest[0]}.{oldest[1]}"}
    assert sys.version_info[:2] in listed


@pytest.mark.parametrize(
    ("classifier", "imported"),
    [
        ("Framework :: AsyncIO", "dualwrite.coordinator.aio"),
        ("Framework :: Pytest", "dualwrite.testing.pytest_plugin"),
        ("Typing :: Typed", "dualwrite"),
    ],
)
def test_a_classifier_is_true_of_a_module(built: Distributions, classifier: str, imported: str) -> None:
    assert classifier in built.metadata.get_all("Classifier", [])
    path = imported.replace(".", "/")
    assert built.files.keys() & {f"{path}.py", f"{path}/__init__.py"}


def test_every_install_command_of_the_documents_names_extras_that_there_are(built: Distributions) -> None:
    extras = set(built.metadata.get_all("Provides-Extra", []))
    commands = {
        document.name: re.findall(r"'[^'\[\n]*\.\[([\w,-]+)\]'", document.read_text(encoding="utf-8"))
        for document in [*HOME.glob("*.md"), *HOME.glob("docs/**/*.md"), *HOME.glob("examples/**/*")]
        if document.is_file()
    }
    assert commands["README.md"]
    named = {extra for found in commands.values() for group in found for extra in group.split(",")}
    assert named - extras == set()


def test_no_module_of_the_wheel_imports_the_tests(built: Distributions) -> None:
    trees = {name: ast.parse(content) for name, content in built.files.items() if name.endswith(".py")}
    imported = {
        (name, module.partition(".")[0])
        for name, tree in trees.items()
        for node in ast.walk(tree)
        for module in _modules(node)
    }
    assert [name for name, root in imported if root in ("tests", "benchmarks", "examples", "migrations")] == []


def _modules(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module] if isinstance(node, ast.ImportFrom) and node.module and not node.level else []
