"""The rooms of tests/ are small, no test module is imported, and a class name occurs once in the project; each rule
reports a tree that breaks it."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.layers import (
    RULES_OF_TESTS,
    Module,
    Rule,
    class_names_are_unique,
    folders_are_small,
    nothing_imports_a_test_module,
    read_tree,
)

TESTS = Path(__file__).parents[2]
TREES = ("dualwrite", "tests", "benchmarks", "examples")


@pytest.fixture(scope="module")
def own_modules() -> list[Module]:
    """Those of tests/, which take seconds to read."""
    return read_tree(TESTS)


def named(tree: str, modules: list[Module]) -> list[Module]:
    """``modules`` with the name of their tree."""
    return [replace(module, name=f"{tree}.{module.name}".rstrip(".")) for module in modules]


def test_a_class_name_occurs_once_in_the_project(own_modules: list[Module]) -> None:
    others = (named(tree, read_tree(TESTS.parent / tree)) for tree in TREES if tree != TESTS.name)
    modules = [*named(TESTS.name, own_modules), *(module for tree in others for module in tree)]
    assert {module.name.partition(".")[0] for module in modules} == set(TREES)
    assert list(class_names_are_unique(modules)) == []


@pytest.mark.parametrize("tree", TREES[1:])
def test_a_class_name_that_occurs_in_two_trees_is_reported(tmp_path: Path, tree: str) -> None:
    for name in ("dualwrite", tree):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.py").write_text("class Worker: ...")
    modules = [module for name in ("dualwrite", tree) for module in named(name, read_tree(tmp_path / name))]
    reported = list(class_names_are_unique(modules))
    assert reported == [f"the class name Worker stands in dualwrite.a and {tree}.a"]


@pytest.mark.parametrize("rule", RULES_OF_TESTS, ids=lambda rule: rule.__name__)
def test_the_tests_keep_the_rules_of_their_rooms(own_modules: list[Module], rule: Rule) -> None:
    assert len(own_modules) == len(list(TESTS.rglob("*.py")))
    assert list(rule(own_modules)) == []


@pytest.mark.parametrize(
    ("rule", "files", "sentence"),
    [
        (
            folders_are_small,
            {f"unit/wire/test_{number}.py": "" for number in range(21)},
            "unit.wire has 21 modules side by side; the limit is 20",
        ),
        (
            nothing_imports_a_test_module,
            {"unit/test_a.py": "from tests.unit.test_b import World"},
            "unit.test_a imports unit.test_b, which is a test module",
        ),
        (
            nothing_imports_a_test_module,
            {"unit/test_a.py": "def f():\n    from tests.unit import test_b"},
            "unit.test_a imports unit.test_b, which is a test module",
        ),
        (
            nothing_imports_a_test_module,
            {"support/a.py": "import tests.unit.test_b"},
            "support.a imports unit.test_b, which is a test module",
        ),
    ],
)
def test_a_tree_of_tests_that_breaks_a_rule_is_reported(
    tmp_path: Path, rule: Rule, files: Mapping[str, str], sentence: str
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert [reported for rule in RULES_OF_TESTS for reported in rule(read_tree(tmp_path))] == [sentence]


def test_a_sound_tree_of_tests_breaks_no_rule(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text("from tests.support.servers import x")
    for number in range(19):
        (tmp_path / f"module{number}.py").write_text("import dualwrite")
    assert [reported for rule in RULES_OF_TESTS for reported in rule(read_tree(tmp_path))] == []
