"""docs/reference/kips goes through the texts of the specification: each section that requires something has a row, and
each row says whether it is built, by which test, or why it differs."""

from pathlib import Path

import pytest

from tests.support.proof_tables import TESTS, besides_tests, missing_tests, named_tests, table_rows

DOCS = TESTS.parent / "docs"
PAGES = DOCS / "reference" / "kips"
HEAD = ["section", "what the text requires", "verdict", "proved by", "the difference and its reason"]
BUILT, DIFFERS, NOT_OURS = "built", "differs", "not ours"

SECTIONS = {
    "kip-98.md": (
        "Producer API changes",
        "The OutOfOrderSequence Exception",
        "An Example Application",
        "Broker configs",
        "Producer configs",
        "Consumer configs",
        "Idempotent Producer Guarantees",
        "Transactional Guarantees",
        "Key Concepts",
        "1. Finding a transaction coordinator -- the FindCoordinatorRequest",
        "2. Getting a producer Id -- the InitPidRequest",
        "2.1 When an TransactionalId is specified",
        "2.2 When an TransactionalId is not specified",
        "3. Starting a Transaction – The beginTransaction() API",  # noqa: RUF001 - the KIP's own dash
        "4.1 AddPartitionsToTxnRequest",
        "4.2 ProduceRequest",
        "4.3 AddOffsetCommitsToTxnRequest",
        "4.4 TxnOffsetCommitRequest",
        "5.1 EndTxnRequest",
        "5.2 WriteTxnMarkerRequest",
        "5.3 Writing the final Commit or Abort Message",
        "Authorization",
        "Discussion on limitations of coordinator authorization",
        "FetchRequest/Response",
        "ProduceRequest/Response",
        "ListOffsetRequest/Response",
        "FindCoordinatorRequest/Response",
        "InitPidRequest/Response",
        "AddPartitionsToTxnRequest/Response",
        "AddOffsetsToTxnRequest",
        "EndTxnRequest/Response",
        "WriteTxnMarkersRequest/Response",
        "TxnOffsetCommitRequest/Response",
        "Message Format",
        "Message Set Fields",
        "Message Fields",
        "Control Messages",
        "Discussion on Message-level Schema",
        "Space Comparison",
        "Metrics",
        "Compatibility, Deprecation, and Migration Plan",
        "Correctness",
        "Performance",
    ),
    "kip-98-first-format.md": (
        "Message Format",
        "Message Set Fields",
        "Message Set Attributes",
        "Discussion on Maximum Message Size",
        "Message Fields",
        "Message Attributes",
        "Discussion on Message-level Schema",
        "Space Comparison",
    ),
    "kip-447.md": (
        "initTransactions with a group assignment",
        "FindCoordinator by group",
        "InitProducerId with a group",
        "The assignment in the transaction log",
        "Errors",
        "TxnOffsetCommitRequest",
        "StreamsConfig",
        "Fencing for upgrades",
        "Example",
        "Upgrade",
        "Rejected alternatives",
        "sendOffsetsToTransaction",
        "TxnOffsetCommit v3",
        "OffsetFetch v7",
        "One producer",
    ),
    "kip-939.md": (
        "2PC Refresher",
        "Kafka as a Participant in 2PC",
        "Motivation",
        "Scope",
        "Solution Requirements and Constraints",
        "Proposed Changes",
        "RPC Changes",
        "Persisted Data Format Changes",
        "Metric Changes",
        "Client Configuration Changes",
        "Broker Configuration Changes",
        "KafkaProducer API Changes",
        "AdminClient API Changes",
        "ACL Changes",
        "Command Line Tool Changes",
        "Compatibility, Deprecation, and Migration Plan",
        "Test Plan",
        "Explicit “prepare” RPC",
        "HeartBeat RPC",
        "Using TransactionTimeoutMs=MAX_INT Instead of Enable2Pc",
        "Disallowing keepPreparedTxn=true without 2PC",
        "Using Partition Offsets as PreparedTxnState",
        "Support Multiple Concurrent Transactions Per Producer",
        "Skip Epoch Bump When KeepPreparedTxn=true",
        "Allow Specifying Client Timeout Even When Enable2Pc=true",
    ),
    "how-kafka-implements-it.md": (
        "The pipeline",
        "Idempotence",
        "Beginning",
        "Sending",
        "Ending",
        "Reading",
        "ACID",
        "Limits",
        "Costs",
    ),
}
"""The headings of each text that stand over a requirement, in the text's order. Two texts have few headings: there they
are what a row is about."""


def rows_of(page: str) -> list[list[str]]:
    return table_rows((PAGES / page).read_text(encoding="utf-8"), HEAD)


ROWS = [(page, row) for page in SECTIONS for row in rows_of(page)]


def complaints(row: list[str]) -> list[str]:
    """What is wrong with a row."""
    if len(row) != len(HEAD):
        return [f"{len(row)} cells"]
    _, requirement, verdict, proof, reason = row
    tests = named_tests(proof)
    wrong = {
        "no requirement": not requirement,
        f"verdict {verdict!r}": verdict not in (BUILT, DIFFERS, NOT_OURS),
        "built without a test": verdict == BUILT and not tests,
        "a difference without a test": verdict == DIFFERS and not tests,
        "no reason": verdict in (DIFFERS, NOT_OURS) and len(reason) < len("The name."),
        "a test twice": len(set(tests)) != len(tests),
        f"besides tests: {besides_tests(proof)}": besides_tests(proof) != "",
        f"missing: {missing_tests(proof)}": missing_tests(proof) != [],
    }
    return [complaint for complaint, is_so in wrong.items() if is_so]


@pytest.mark.parametrize(("page", "row"), ROWS, ids=lambda value: value[1][:60] if isinstance(value, list) else value)
def test_a_row_has_a_verdict_with_its_tests_and_a_difference_its_reason(page: str, row: list[str]) -> None:
    assert complaints(row) == [], page


@pytest.mark.parametrize("page", SECTIONS)
def test_each_section_that_requires_something_has_rows_in_the_order_of_the_text(page: str) -> None:
    assert tuple(row[0] for row in rows_of(page) if row[0]) == SECTIONS[page]


def test_every_page_is_checked() -> None:
    assert sorted(path.name for path in PAGES.glob("*.md")) == sorted(SECTIONS)


@pytest.mark.parametrize("page", SECTIONS)
def test_a_text_is_taken_apart_and_not_summed_up(page: str) -> None:
    rows = rows_of(page)
    assert len(rows) > len(SECTIONS[page])
    assert sum(row[2] == BUILT for row in rows) >= 4


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        (["s", "r", BUILT, "", ""], "built without a test"),
        (["s", "r", DIFFERS, "", "another name, as in Kafka"], "a difference without a test"),
        (["s", "r", NOT_OURS, "", ""], "no reason"),
        (["s", "r", "perhaps", "", ""], "verdict 'perhaps'"),
        (["s", "", NOT_OURS, "", "another program's"], "no requirement"),
        (["s", "r", BUILT], "3 cells"),
        (["s", "r", BUILT, "`unit/project/proofs/test_kip_pages.py::test_gone`", ""], "missing: "),
        (["s", "r", BUILT, "`unit/test_gone.py::test_gone`", ""], "missing: "),
        (
            ["s", "r", BUILT, "`unit/project/proofs/test_kip_pages.py::complaints`, read it", ""],
            "besides tests: read it",
        ),
    ],
)
def test_a_row_without_proof_would_be_noticed(row: list[str], complaint: str) -> None:
    assert any(found.startswith(complaint) for found in complaints(row)), complaints(row)


def test_a_text_that_other_pages_refer_to_says_which_it_is() -> None:
    page = (DOCS / "reference" / "semantics.md").read_text(encoding="utf-8")
    assert [name for name in SECTIONS if f"(kips/{name})" not in page] == []
    assert [name for name in SECTIONS if not Path(PAGES / name).read_text(encoding="utf-8").startswith("# ")] == []
