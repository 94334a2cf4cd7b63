"""The Go module of franz-go's programs, and whether it can be built."""

import shutil
import subprocess
from pathlib import Path

GO_MODULE = Path(__file__).parents[2] / "peer_clients" / "go"


def what_is_missing() -> str | None:
    """Why the module cannot be built here; None if it can."""
    if shutil.which("go") is None:
        return "no go toolchain on PATH"
    # Here go.mod is read, which says the version that is needed.
    version = subprocess.run(["go", "version"], cwd=GO_MODULE, capture_output=True, text=True)
    return None if version.returncode == 0 else version.stderr.strip()
