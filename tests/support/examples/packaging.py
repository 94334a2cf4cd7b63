"""The Containerfile of ``examples/packaging``, as its tests read it."""

import json
import re

from tests.support.distributions import HOME

PACKAGING = HOME / "examples" / "packaging"
PROGRAM = "/opt/dualwrite/bin/dualwrite"


def instructions(stage: int = -1) -> list[tuple[str, str]]:
    """The instructions of a stage of the Containerfile."""
    text = re.sub(r"\\\n", " ", (PACKAGING / "Containerfile").read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    stages: list[list[tuple[str, str]]] = []
    for line in lines:
        name, _, rest = line.partition(" ")
        if name == "FROM":
            stages.append([])
        stages[-1].append((name, rest.strip()))
    return stages[stage]


def container(name: str) -> str:
    """The one value of an instruction in the image's own stage."""
    (value,) = [value for instruction, value in instructions() if instruction == name]
    return value


def container_command() -> list[str]:
    """The program of the image, with its arguments."""
    command: list[str] = json.loads(container("ENTRYPOINT"))
    return command


def options_of(command: list[str]) -> dict[str, str]:
    """The options of a broker's command by name."""
    _, _, *arguments = command
    return dict(zip(arguments[::2], arguments[1::2], strict=True))
