"""Fuzzes the text of a prepared transaction (KIP-939's PreparedTxnState): a text is read as itself, or refused."""

import random

from dualwrite.coordinator.rules.evidence import with_evidence
from dualwrite.errors import ConfigurationError
from dualwrite.ids import Anchor, PreparedTxnState, ProducerIdentity

_LETTERS = "0123456789:::-+_ .~@ax\n\t\0é٣²\ud800"
_TEXTS = ("", "0:0", "4000:7", "4000:7:orders:3:12", "9223372036854775807:32767", "4000:7@1700000000000~" + "A" * 22)


def fuzz_states(seed: int) -> str:
    """Read one text. An AssertionError begins with the seed that repeats it."""
    try:
        return read_state(_hostile(random.Random(seed)))
    except Exception as error:
        raise AssertionError(f"fuzz_states({seed}): {error!r}") from error


def read_state(text: str) -> str:
    """Read ``text`` as a state and as the evidence of one, and return the outcome.

    :raises Exception: if it is read as another text, or refused without a reason in one line.
    """
    reason = ""
    try:
        state = PreparedTxnState(text)
        assert str(state) == text, f"{text!r} was read as {state!s}"
        assert PreparedTxnState.parse(text) == state, "two readers differ"
    except ConfigurationError as error:
        reason = str(error)
    assert "\n" not in reason, "the reason has several lines"
    for known in (PreparedTxnState(_OWN), PreparedTxnState(_OWN, Anchor("orders", 3, 12))):
        try:
            completed = with_evidence(known, text)
        except ConfigurationError:
            continue
        assert completed == known, f"{text!r} made another transaction of {known!s}"
    return f"states: {'refused' if reason else 'read'}"


_OWN = ProducerIdentity(4000, 7)


def _hostile(rng: random.Random) -> str:
    letters = list(rng.choice(_TEXTS))
    for _ in range(rng.choice((0, 1, 1, 2, 4))):
        at = rng.randrange(len(letters) + 1)
        kind = rng.randrange(4)
        if kind == 0:
            letters[at:at] = rng.choice(_LETTERS)
        elif kind == 1:
            del letters[at : at + rng.choice((1, 2, 5))]
        elif kind == 2 and at < len(letters):
            letters[at] = rng.choice(_LETTERS)
        else:
            letters[at:at] = "9" * rng.choice((1, 10, 20, 5000))
    return "".join(letters)
