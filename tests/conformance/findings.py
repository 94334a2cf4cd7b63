"""Where the bundled broker answers otherwise than Apache Kafka 4.4.0, on purpose or by need, each with its reason.

A difference that is not here fails the tests, and so does an entry that is no difference any more.
"""

from typing import NamedTuple


class Finding(NamedTuple):
    """One difference: the day on which it was found, what the bundled broker answers, and why that stays."""

    found: str
    bundled: str
    reason: str


_TWO_PHASE_TIMEOUT = "2147483647 asks for two-phase commit in any version, for clients that cannot send v6"

FINDINGS: dict[tuple[str, str], Finding] = {
    ("idempotence.timeouts_matter_with_a_transactional_id_only", "an id, 2147483647"): Finding(
        "2026-11-21", "error=NONE epoch=0", _TWO_PHASE_TIMEOUT
    ),
}
"""By case and step."""
