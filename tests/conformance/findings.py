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

_TODAY = "2026-11-21"
_OPAQUE = "batches are opaque: their headers and checksums are checked, their records are not read (docs/design.md)"
_UNFIT = "produce.batches_that_are_not_fit"
_TWICE_WRONG = "more than one thing is wrong with it, and the other one is told"

FINDINGS: dict[tuple[str, str], Finding] = {
    ("idempotence.timeouts_matter_with_a_transactional_id_only", "an id, 2147483647"): Finding(
        _TODAY, "error=NONE epoch=0", _TWO_PHASE_TIMEOUT
    ),
    (_UNFIT, "null"): Finding(
        _TODAY, "error=INVALID_RECORD", "Apache Kafka never answers this one; a client would wait for nothing"
    ),
    (_UNFIT, "trailing bytes"): Finding(
        _TODAY, "error=INVALID_RECORD", "no client sends them; what was sent is not to be cut in silence"
    ),
    (_UNFIT, "append time"): Finding(
        _TODAY, "error=INVALID_TIMESTAMP", "no client sends it; Apache Kafka clears the bit and makes a new checksum"
    ),
    (_UNFIT, "delete horizon"): Finding(
        _TODAY, "error=INVALID_RECORD", "no client sends it; the time of the horizon would be read as a record's"
    ),
    (_UNFIT, "a negative number of records"): Finding(
        _TODAY, "error=CORRUPT_MESSAGE", "the lengths of the header are looked at first"
    ),
    (_UNFIT, "negative offsets"): Finding(
        _TODAY, "error=CORRUPT_MESSAGE", "the lengths of the header are looked at first"
    ),
    (_UNFIT, "fewer records than there are"): Finding(_TODAY, "error=NONE", _OPAQUE),
    (_UNFIT, "gzip that is none"): Finding(_TODAY, "error=NONE", _OPAQUE),
    (_UNFIT, "a producer without an epoch"): Finding(
        _TODAY, "error=INVALID_RECORD", "half an identity identifies nobody; no client sends it"
    ),
    (_UNFIT, "a transaction without a producer"): Finding(_TODAY, "error=INVALID_RECORD", _TWICE_WRONG),
    (_UNFIT, "an unknown codec"): Finding(
        _TODAY, "error=UNSUPPORTED_COMPRESSION_TYPE", "UNKNOWN_SERVER_ERROR would not say what is wrong"
    ),
    ("produce.codecs_and_versions", "zstd in v7"): Finding(_TODAY, "error=NONE", _OPAQUE),
    ("produce.a_first_timestamp_that_its_maximum_contradicts", "kept"): Finding(_TODAY, "maximum=0", _OPAQUE),
    ("reading.aborted_transactions_among_many", "only the first batch"): Finding(
        _TODAY,
        "high_watermark=12 stable=12 start=0 aborted=[['p1:0', 0]] batches=[0]",
        "Apache Kafka adds transactions that begin after what it returns, as far as its index is coarse",
    ),
}
"""By case and step."""
