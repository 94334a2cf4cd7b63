"""The text that a state row keeps beside the identity."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.coordinator.rules.evidence import evidence, with_evidence
from dualwrite.ids import UNKNOWN_START, Anchor, PreparedTxnState, ProducerIdentity, TopicPartition

TOPIC_ID = "Pw5lyXa0QYmel8Lm9_7m-g"
topic_ids = st.sampled_from(["", TOPIC_ID, "-" * 22])
topics = st.sampled_from(["t", "a.b_c-d", "t" * 198, "t" * 249])


@given(topics, topic_ids, st.sampled_from([UNKNOWN_START, 1, 1795412970245]), st.integers(0, 2**63 - 1), st.booleans())
def test_evidence_survives_the_row_that_stores_it(
    topic: str, topic_id: str, start: int, offset: int, is_anchored: bool
) -> None:
    producer, place = ProducerIdentity(2**40, 7), Anchor.of(TopicPartition(topic, 3), offset)
    state = (
        PreparedTxnState(producer, place, started_ms=start, topic_id=topic_id)
        if is_anchored
        else PreparedTxnState(producer, first_record=place, topic_id=topic_id)
    )
    text = evidence(state) or ""
    assert len(text) <= 255
    found = with_evidence(PreparedTxnState(producer, state.anchor), text)
    assert (found.first_record, found.started_ms) == (state.first_record, state.started_ms)
    assert found.topic_id == topic_id or (len(topic) > 150 and not found.topic_id)


ANCHOR, LONG = Anchor("t", 0, 5), Anchor("t" * 224, 0, 5)


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (PreparedTxnState(ProducerIdentity(1, 2)), None),
        (PreparedTxnState(ProducerIdentity(1, 2), ANCHOR), None),
        (PreparedTxnState(ProducerIdentity(1, 2), ANCHOR, started_ms=7), "1:2@7"),
        (PreparedTxnState(ProducerIdentity(1, 2), ANCHOR, topic_id=TOPIC_ID), f"1:2~{TOPIC_ID}"),
        (PreparedTxnState(ProducerIdentity(1, 2), ANCHOR, started_ms=0, topic_id=TOPIC_ID), f"1:2@0~{TOPIC_ID}"),
        (PreparedTxnState(ProducerIdentity(1, 2), first_record=ANCHOR), "1:2:t:0:5"),
        (  # 255 bytes, which is what the column holds
            PreparedTxnState(ProducerIdentity(1, 2), first_record=LONG, topic_id=TOPIC_ID),
            f"1:2:{LONG.topic}~{TOPIC_ID}:0:5",
        ),
        (
            PreparedTxnState(ProducerIdentity(1, 20), first_record=LONG, topic_id=TOPIC_ID),
            f"1:20:{LONG.topic}:0:5",
        ),
    ],
)
def test_evidence_has_what_is_known_and_fits_into_its_column(state: PreparedTxnState, text: str | None) -> None:
    assert evidence(state) == text
    assert text is None or len(text) <= 255


@pytest.mark.parametrize("anchor", [None, Anchor("t", 0, 5)], ids=["native", "librdkafka"])
def test_evidence_of_another_state_is_ignored(anchor: Anchor | None) -> None:
    older = PreparedTxnState(ProducerIdentity(1, 2), anchor, Anchor("t", 0, 5), 1000, TOPIC_ID)
    later = PreparedTxnState(ProducerIdentity(1, 3), anchor)
    found = with_evidence(later, evidence(older) or "")
    assert (found.started_ms, found.topic_id) == (UNKNOWN_START, "")
    assert found.first_record == anchor


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (PreparedTxnState(ProducerIdentity(1, 2)), ""),
        (PreparedTxnState(ProducerIdentity(1, 2), first_record=Anchor("t", 0, 5)), "1:2:t:0:5"),
        (PreparedTxnState(ProducerIdentity(1, 2), Anchor("t", 0, 5)), ""),
    ],
)
def test_rows_of_the_former_release_are_read(state: PreparedTxnState, text: str) -> None:
    found = with_evidence(PreparedTxnState(state.producer, state.anchor), text)
    assert (found, found.first_record, found.started_ms) == (state, state.first_record, UNKNOWN_START)


def test_the_former_release_reads_a_topic_that_it_cannot_find() -> None:
    state = PreparedTxnState(ProducerIdentity(1, 2), first_record=Anchor("t", 0, 5), topic_id=TOPIC_ID)
    assert PreparedTxnState(evidence(state) or "").anchor == Anchor(f"t~{TOPIC_ID}", 0, 5)


@pytest.mark.parametrize("start", ["9" * 5000, "\u0663", "-5", "1.5"])
def test_a_start_time_that_is_no_number_is_unknown(start: str) -> None:
    state = PreparedTxnState(ProducerIdentity(4000, 7), Anchor("orders", 3, 12))
    assert with_evidence(state, f"4000:7@{start}").started_ms == UNKNOWN_START
