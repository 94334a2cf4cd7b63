"""Exhaustive search: run a scenario once for every combination of up to N faults at the places where it asks."""

from collections.abc import Callable, Sequence


class Chooser:
    """Answers 0 (no fault) to every question but those that the script says otherwise about."""

    def __init__(self, script: Sequence[int]) -> None:
        self.script = script
        self.options: list[int] = []

    def choose(self, options: int) -> int:
        place = len(self.options)
        self.options.append(options)
        return self.script[place] if place < len(self.script) else 0


def every_run(scenario: Callable[[Chooser], None], faults: int) -> int:
    """Run ``scenario`` with every combination of at most ``faults`` faults; the number of runs."""
    scripts: list[tuple[int, ...]] = [()]
    runs = 0
    while scripts:
        script = scripts.pop()
        chooser = Chooser(script)
        try:
            scenario(chooser)
        except BaseException as error:
            raise AssertionError(f"with the faults {script}: {error!r}") from error
        runs += 1
        if sum(map(bool, script)) < faults:
            for place in range(len(script), len(chooser.options)):
                quiet = (0,) * (place - len(script))
                scripts.extend((*script, *quiet, choice) for choice in range(1, chooser.options[place]))
    return runs
