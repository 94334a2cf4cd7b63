"""Programs that tests start as processes of their own: where they are, and how they find this checkout."""

import os
from pathlib import Path

HOME = Path(__file__).parents[3]
EXAMPLES = HOME / "examples"


def environment(**variables: str) -> dict[str, str]:
    """This process's environment with ``variables``, and with this checkout first among what is imported."""
    paths = os.pathsep.join(filter(None, [str(HOME), os.environ.get("PYTHONPATH")]))
    return {**os.environ, **variables, "PYTHONPATH": paths}
