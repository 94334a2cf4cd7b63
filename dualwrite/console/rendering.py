"""Templates of the console. Every value is escaped, and what a browser would obey or hide is shown with escapes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dualwrite.extras import brought_by
from dualwrite.operations.phrases import printable

with brought_by("console"):
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

HOME = Path(__file__).parent


def _finalized(value: Any) -> Any:
    return value if isinstance(value, Markup) else printable(str(value))


class Templates:
    """The templates beside this module."""

    def __init__(self) -> None:
        self._environment = Environment(
            loader=FileSystemLoader(HOME / "templates"),
            autoescape=True,
            finalize=_finalized,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )

    def render(self, name: str, **values: Any) -> str:
        """The template ``name`` with ``values``, which are escaped."""
        return self._environment.get_template(f"{name}.html").render(values)

    def page(self, sections: Mapping[str, str], **values: Any) -> str:
        """The whole page around its sections, which are rendered."""
        return self.render("page", sections={name: Markup(text) for name, text in sections.items()}, **values)  # noqa: S704


def event(name: str, text: str) -> str:
    """A server-sent event, whose data are the lines of ``text``."""
    data = "".join(f"data: {line}\n" for line in text.splitlines())
    return f"event: {name}\n{data}\n"
