"""``python -m tests.fuzz.guided batches --seconds 3600``: fuzzing by atheris, guided by coverage, of the targets that
read bytes or text.

atheris is no dependency of the project: install it beside it. Each input that it finds interesting is kept in a
directory, and later runs begin with those. What it finds it leaves in a file; the exit code is then 77.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

KINDS = ("csv", "tsv", "jsonl")
TARGETS = ("batches", "states", "inputs")


def target_of(name: str) -> Callable[[bytes], object]:
    """The function of the target ``name``. Its modules are imported here, so that atheris can instrument them."""
    if name == "batches":
        from tests.fuzz.batches import read_batches

        return read_batches
    if name == "states":
        from tests.fuzz.states import read_state

        return lambda data: read_state(data.decode("utf-8", "replace"))
    from tests.fuzz.inputs import read_input

    return lambda data: read_input(data[1:], KINDS[data[0] % len(KINDS)] if data else KINDS[0])


def main() -> None:
    """Fuzz one target; does not return, as atheris ends the process.

    :raises ModuleNotFoundError: if atheris is not installed.
    """
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.guided", description=__doc__)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--seconds", type=int, default=60, help="how long (%(default)s)")
    parser.add_argument("--corpus", type=Path, default=Path(".fuzz"), help="the interesting inputs (%(default)s)")
    arguments = parser.parse_args()
    import atheris

    corpus: Path = arguments.corpus / arguments.target
    corpus.mkdir(parents=True, exist_ok=True)
    with atheris.instrument_imports(include=["dualwrite"]):
        target = target_of(arguments.target)
    options = [f"-max_total_time={arguments.seconds}", f"-artifact_prefix={arguments.corpus}/", str(corpus)]
    atheris.Setup([sys.argv[0], *options], target)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
