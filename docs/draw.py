"""Writes states.md, protocol.md and metrics.md of docs/reference from the code's own tables: ``python docs/draw.py``.

A test compares the pages with what this would write.
"""

from collections.abc import Iterator
from pathlib import Path

from dualwrite.broker.api.routes import advertised
from dualwrite.broker.core.transactions import TRANSITIONS as TRANSACTION_TRANSITIONS
from dualwrite.broker.metrics import METRICS, PREFIX
from dualwrite.coordinator.machine import STEPS, TRANSITIONS
from dualwrite.wire.apis import ApiKey

REFERENCE = Path(__file__).parent / "reference"

# What of a KIP works in the bundled broker, what does not, and why.
KIPS = [
    ("98", "idempotence and transactions", "all but offsets in transactions"),
    ("74", "one batch at least, however small max_bytes is", "all"),
    ("227", "fetch sessions", "declined: clients send full fetches"),
    ("360", "InitProducerId with the expected identity", "all"),
    ("447", "offsets of many partitions by one producer", "no: no offsets in transactions yet"),
    ("464", "default partition count in CreateTopics", "all"),
    ("511", "ApiVersions names the client, and is answered in v0 if its version is unknown", "all"),
    ("516", "topic ids", "all"),
    ("588", "PRODUCER_FENCED", "all"),
    (
        "664",
        "DescribeTransactions, ListTransactions, DescribeProducers",
        "all, WriteTxnMarkers from an operator included",
    ),
    ("709", "OffsetFetch of several groups", "all"),
    ("734", "offset of the highest timestamp", "all"),
    ("848", "the next consumer protocol", "topic ids in OffsetCommit and OffsetFetch; no group membership yet"),
    ("890", "part 1: no hanging transactions; part 2: an epoch for each transaction", "all but TxnOffsetCommit"),
    ("939", "two-phase commit", "all but the ACL operation TWO_PHASE_COMMIT: no ACLs yet"),
    ("994", "ListTransactions by duration", "all"),
    ("1228", "WriteTxnMarkers says the transaction's version", "all"),
    ("1152", "ListTransactions by pattern", "all"),
]


def states_page() -> str:
    """The two state machines."""
    return "\n".join(["# State machines", "", _GENERATED, "", *_dual_write(), "", *_transactions(), ""])


def protocol_page() -> str:
    """What the bundled broker speaks."""
    return "\n".join(["# What the bundled broker speaks", "", _GENERATED, "", *_apis(), "", *_kips(), ""])


_GENERATED = "Written by `python docs/draw.py` from the code; a test compares."


def _dual_write() -> Iterator[str]:
    yield "## One dual write (`coordinator/machine.py`)"
    yield ""
    yield "A state's step is performed on entering it; the label of an arrow is how it ended."
    yield ""
    yield "```mermaid"
    yield "stateDiagram-v2"
    for state, outgoing in TRANSITIONS.items():
        step = STEPS.get(state)
        yield f"    {state.name} : {state.value}" + (f" ({step.name})" if step is not None else "")
        for event, target in outgoing.items():
            yield f"    {state.name} --> {target.name} : {event.name}"
        if not outgoing:
            yield f"    {state.name} --> [*]"
    yield "```"


def _transactions() -> Iterator[str]:
    yield "## A transactional id in the broker (`broker/core/transactions.py`)"
    yield ""
    yield "```mermaid"
    yield "stateDiagram-v2"
    yield "    [*] --> EMPTY : InitProducerId"
    for target, sources in TRANSACTION_TRANSITIONS.items():
        for source, cause in sources.items():
            yield f"    {source.name} --> {target.name} : {cause}"
    yield "    DEAD --> [*]"
    yield "```"


def metrics_page() -> str:
    """What ``dualwrite broker --metrics`` tells."""
    rows = (
        f"| `{PREFIX}{metric.name}` | {metric.kind} | {', '.join(metric.labels)} | {metric.meaning} |"
        for metric in METRICS
    )
    return "\n".join(["# Metrics of the bundled broker", "", _GENERATED, "", _METRICS, "", *_TABLE, *rows, ""])


_METRICS = """`dualwrite broker --metrics HOST:PORT` answers Prometheus at `http://HOST:PORT/metrics`, without a
password: keep it to a network that you trust. The values are read when they are asked for."""
_TABLE = ("| metric | kind | labels | meaning |", "|---|---|---|---|")


def _apis() -> Iterator[str]:
    yield "| API | key | versions |"
    yield "|---|---|---|"
    for key, versions in advertised():
        name = "".join(word.capitalize() for word in ApiKey(key).name.split("_"))
        yield f"| {name} | {int(key)} | {versions[0]} to {versions[-1]} |"
    yield ""
    yield "Produce is advertised from v0, as Apache Kafka does, and works from v3."
    yield "The finalized feature is `transaction.version=2`."


def _kips() -> Iterator[str]:
    yield "| KIP | what it is | what works |"
    yield "|---|---|---|"
    for number, what, works in KIPS:
        yield f"| {number} | {what} | {works} |"


def main() -> None:
    """Write the pages."""
    (REFERENCE / "states.md").write_text(states_page())
    (REFERENCE / "protocol.md").write_text(protocol_page())
    (REFERENCE / "metrics.md").write_text(metrics_page())


if __name__ == "__main__":
    main()
