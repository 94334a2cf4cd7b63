"""Where the bundled broker answers otherwise than Apache Kafka 4.4.0, on purpose or by need, each with its reason.

A difference that is not here fails the tests, and so does an entry that is no difference any more.
"""

from typing import NamedTuple


class KnownDifference(NamedTuple):
    """One difference: the day on which it was found, what the bundled broker answers, and why that stays."""

    found: str
    bundled: str
    reason: str


_TWO_PHASE_TIMEOUT = "2147483647 asks for two-phase commit in any version, for clients that cannot send v6"

_TODAY = "2026-11-21"
_OPAQUE = "batches are opaque: their headers and checksums are checked, their records are not read (docs/design.md)"
_KIP_939 = "Apache Kafka 4.4 has no KeepPreparedTxn yet (KIP-939)"
_NEXT_NUMBER = "Apache Kafka has refused the one before, so that it counts one producer id less"
_TWO_PHASES = "transactions.two_phase_commit_asked_for"
_VERSIONS = "cluster.versions_of_every_request"
_UNFIT = "produce.batches_that_are_not_fit"
_NOBODYS = "no client sends it; without a producer id it is refused whoever sends it, which holds nobody's readers back"

_ADMINISTRATION = "administration"
_OF_GROUPS = "administration.settings_of_groups"
_ONE_LEVEL = "the broker is always at level 2; the clients of the older protocol are served at this level, too"
_MIXING = "transactions.what_no_transaction_may_mix"
_OWNED = "a producer id of a transactional id writes no other batches: one could stand in for a transaction's record"

FINDINGS: dict[tuple[str, str], KnownDifference] = {
    ("consumer_groups.two_members_share", "the first is asked again"): KnownDifference(
        "2026-11-27",
        "epoch=2 assigned={id 1: [0, 1]}",
        "a member that says that it holds something else may have missed the answer, and is told again",
    ),
    (_MIXING, "not transactional, open"): KnownDifference("2026-11-24", "error=INVALID_PRODUCER_ID_MAPPING", _OWNED),
    (_MIXING, "not transactional, ended"): KnownDifference("2026-11-24", "error=INVALID_PRODUCER_ID_MAPPING", _OWNED),
    ("markers.markers_of_the_second_version", "a record of the first"): KnownDifference(
        "2026-11-24", "error=INVALID_PRODUCER_ID_MAPPING", _OWNED
    ),
    ("idempotence.timeouts_matter_with_a_transactional_id_only", "an id, 2147483647"): KnownDifference(
        _TODAY, "error=NONE epoch=0", _TWO_PHASE_TIMEOUT
    ),
    (_UNFIT, "null"): KnownDifference(
        _TODAY, "error=INVALID_RECORD", "Apache Kafka never answers this one; a client would wait for nothing"
    ),
    (_UNFIT, "trailing bytes"): KnownDifference(
        _TODAY, "error=INVALID_RECORD", "no client sends them; what was sent is not to be cut in silence"
    ),
    (_UNFIT, "append time"): KnownDifference(
        _TODAY, "error=INVALID_TIMESTAMP", "no client sends it; Apache Kafka clears the bit and makes a new checksum"
    ),
    (_UNFIT, "delete horizon"): KnownDifference(
        _TODAY, "error=INVALID_RECORD", "no client sends it; the time of the horizon would be read as a record's"
    ),
    (_UNFIT, "fewer records than there are"): KnownDifference(_TODAY, "error=NONE", _OPAQUE),
    (_UNFIT, "gzip that is none"): KnownDifference(_TODAY, "error=NONE", _OPAQUE),
    (_UNFIT, "a producer without an epoch"): KnownDifference(
        _TODAY, "error=INVALID_RECORD", "half an identity identifies nobody; no client sends it"
    ),
    (_UNFIT, "a transaction without a producer"): KnownDifference(_TODAY, "error=INVALID_RECORD", _NOBODYS),
    (_UNFIT, "an unknown codec"): KnownDifference(
        _TODAY, "error=UNSUPPORTED_COMPRESSION_TYPE", "UNKNOWN_SERVER_ERROR would not say what is wrong"
    ),
    ("produce.codecs_and_versions", "zstd in v7"): KnownDifference(_TODAY, "error=NONE", _OPAQUE),
    ("produce.a_first_timestamp_that_its_maximum_contradicts", "kept"): KnownDifference(_TODAY, "maximum=0", _OPAQUE),
    ("transactions.partitions_that_join", "after none"): KnownDifference(
        _TODAY,
        "error=NONE state='Empty' timeout=60000 started=-1 producer=p1:0 partitions=[]",
        "a transaction begins with its first partition; no client adds none",
    ),
    ("transactions.what_no_transaction_may_mix", "another's batch"): KnownDifference(
        _TODAY,
        "error=INVALID_PRODUCER_ID_MAPPING offset=-1",
        "Apache Kafka verifies nothing where the producer has a transaction open; here every batch is verified",
    ),
    ("topics.partitions_added", "internal, validated"): KnownDifference(
        _TODAY, "error=INVALID_PARTITIONS", "the broker's own topics have one partition each: it has one node"
    ),
    ("topics.settings_described", "of a topic, in hours for a broker"): KnownDifference(
        _TODAY,
        "error=NONE settings=[['retention.ms', '5000', 1, 5, False,"
        " [['retention.ms', '5000', 1], ['log.retention.hours', '168', 5]]]]",
        "Apache Kafka leaves out a default that is in another unit; it says where the value would come from",
    ),
    ("topics.defaults_of_a_topic", "min.insync.replicas"): KnownDifference(
        _TODAY, "value='1' source=5 kind=3", "Apache Kafka sets it for all of its nodes when it is formatted"
    ),
    **{
        ("topics.settings_altered", f"an unknown operation{more}"): KnownDifference(
            _TODAY, "error=INVALID_REQUEST", "no client sends it; UNKNOWN_SERVER_ERROR would not say what is wrong"
        )
        for more in ("", ", validated")
    },
    **{
        (f"{_ADMINISTRATION}.features_updated", f"{step}, v{version}"): KnownDifference(
            "2026-11-27", "error=INVALID_UPDATE_VERSION results=[]", _ONE_LEVEL
        )
        for step in ("down", "off by force")
        for version in (1, 2)
    },
    (_OF_GROUPS, "an interval of assignments, of group 1"): KnownDifference(
        "2026-11-28",
        "error=INVALID_CONFIG message='Invalid value 1000 for configuration consumer.assignment.interval.ms: the broker"
        " assigns partitions at once'",
        "the broker assigns in the heartbeat that needs it, so it would have no effect",
    ),
    (_OF_GROUPS, "of a share group, of group 1"): KnownDifference(
        "2026-11-28",
        "error=INVALID_CONFIG message='Unknown group config name: share.session.timeout.ms'",
        "this broker has no share groups and no streams groups, so it would have no effect",
    ),
    **{
        (f"{_ADMINISTRATION}.quotas", f"set, v{version}"): KnownDifference(
            "2026-11-27", "error=INVALID_REQUEST", "this broker enforces no quotas, so it stores none"
        )
        for version in range(2)
    },
    (_TWO_PHASES, "both"): KnownDifference(_TODAY, "error=NONE producer=p1:0", _KIP_939),
    (_TWO_PHASES, "both, then"): KnownDifference(
        _TODAY, "error=NONE state='Empty' timeout=2147483647 started=-1 producer=p1:0 partitions=[]", _KIP_939
    ),
    (_TWO_PHASES, "keep"): KnownDifference(_TODAY, "error=NONE producer=p3:0", _KIP_939),
    (_TWO_PHASES, "keep, then"): KnownDifference(
        _TODAY, "error=NONE state='Empty' timeout=60000 started=-1 producer=p3:0 partitions=[]", _KIP_939
    ),
    (_TWO_PHASES, "neither"): KnownDifference(_TODAY, "error=NONE producer=p4:0", _NEXT_NUMBER),
    (_TWO_PHASES, "neither, then"): KnownDifference(
        _TODAY, "error=NONE state='Empty' timeout=60000 started=-1 producer=p4:0 partitions=[]", _NEXT_NUMBER
    ),
    ("markers.markers_of_an_open_transaction", "no epoch"): KnownDifference(
        _TODAY,
        "errors=[INVALID_REQUEST] epoch=1 sequence=0 coordinator=-1 start=0",
        "UNKNOWN_SERVER_ERROR would not say what is wrong",
    ),
    ("reading.aborted_transactions_among_many", "only the first batch"): KnownDifference(
        _TODAY,
        "high_watermark=12 stable=12 start=0 aborted=[['p1:0', 0]] batches=[0]",
        "Apache Kafka adds transactions that begin after what it returns, as far as its index is coarse",
    ),
}
"""By case and step."""
