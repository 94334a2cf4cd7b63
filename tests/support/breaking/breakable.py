"""Functions of the product that negative controls break on purpose.

A negative control proves that a search, a simulation or a crash test notices a broken protocol. It replaces one
function of the product by a broken one. The product has no switch that breaks it, and must have none: so there is no
public way to a private function. Each room of the tests has its list of them in this folder, and no test names one
elsewhere.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest


@dataclass(frozen=True)
class Breakable:
    """A function or a table that a negative control replaces.

    :param owner: the class or the module that has it.
    """

    owner: Any
    name: str

    @property
    def original(self) -> Any:
        """What the product has there now."""
        return getattr(self.owner, self.name)

    def broken_by(self, monkeypatch: pytest.MonkeyPatch, replacement: Any) -> None:
        """Replace it until the test ends."""
        monkeypatch.setattr(self.owner, self.name, replacement)


Broken = tuple[Breakable, Callable[..., Any]]
"""What is replaced, and by what."""
