"""What the site shows below its examples is what they print, and the same in each build."""

import pytest

from tests.support.examples.programs import HOME


@pytest.mark.slow
def test_the_examples_of_the_site_print_the_same_in_each_build() -> None:
    pytest.importorskip("mkdocs")
    import site_examples as examples

    paths = {path.relative_to(HOME / "docs").as_posix(): path for path in (HOME / "docs").rglob("*.md")}
    texts = {name: path.read_text(encoding="utf-8") for name, path in paths.items()}
    texts["index.md"] = (HOME / "README.md").read_text(encoding="utf-8")
    shared = [step for step in examples.steps_of(texts["tutorial.md"]) if step.name == "shop.py"]
    pages = {name: text for name, text in texts.items() if "<!-- output -->" in text}
    printed = examples.run_examples(pages, shared)
    assert [line for name, text in pages.items() for line in examples.wrong_results(name, text, printed[name])] == []
    assert examples.run_examples(dict(reversed(pages.items())), shared) == printed
    assert sum(result.output != "" for results in printed.values() for result in results) >= 20
