"""A topic as text and as JSON, whatever is known of it."""

import json
from dataclasses import replace
from datetime import datetime, timedelta, timezone

from dualwrite.admin.views import OpenTransaction, PartitionDetails, TopicConfigEntry, TopicDetails
from dualwrite.cli.kafka.topic_output import as_json, paragraphs
from dualwrite.cli.printing import as_json_text
from dualwrite.ids import ProducerIdentity

BEGAN = datetime.now(timezone.utc) - timedelta(days=100, hours=1)
HOLDER = OpenTransaction("shop-0", ProducerIdentity(7, 1), 4, BEGAN)
NAMELESS = OpenTransaction(None, ProducerIdentity(8, 0), 6, None)
HELD = PartitionDetails(0, 1, (1, 2), (1,), 0, 4, 9, 684, (HOLDER, NAMELESS))
WITHOUT_LEADER = PartitionDetails(1, None, (1, 2), ())
SETTINGS = (TopicConfigEntry("cleanup.policy", "delete", False), TopicConfigEntry("retention.ms", "1", True))
TOPIC = TopicDetails("orders", "some-id", False, (HELD, WITHOUT_LEADER), SETTINGS)


def test_what_is_not_known_is_a_question_mark() -> None:
    assert list(paragraphs(TOPIC)) == [
        "topic     orders",
        "id        some-id",
        "settings  retention.ms=1",
        "PARTITION  LEADER  REPLICAS  IN-SYNC  EARLIEST  STABLE  END  HELD-BACK  BYTES",
        "0          1       1,2       1        0         4       9    5          684",
        "1          none    1,2       ?        ?         ?       ?    ?          ?",
        "partition 0: transaction shop-0 from offset 4 on, open for 100 d, holds back 5 offsets",
        "partition 0: transaction of producer 8:0 from offset 6 on",
    ]


def test_what_is_not_granted_is_named() -> None:
    lines = list(paragraphs(replace(TOPIC, settings=None, partitions=(replace(HELD, open_transactions=None),))))
    assert lines[2] == "settings  not shown: DESCRIBE_CONFIGS on the topic is not granted"
    assert lines[-1] == "open transactions are not shown: READ on the topic is not granted"


def test_a_topic_of_kafkas_own_is_marked_and_an_older_broker_has_no_ids() -> None:
    lines = list(paragraphs(TopicDetails("__consumer_offsets", "", True, (replace(HELD, open_transactions=()),), ())))
    assert lines[:2] == ["topic     __consumer_offsets (internal)", "settings  the defaults of the broker"]
    assert len(lines) == 4


def test_a_transaction_that_holds_nothing_back_is_not_blamed() -> None:
    partition = replace(HELD, high_watermark=4, open_transactions=(HOLDER,))
    assert list(paragraphs(replace(TOPIC, partitions=(partition,))))[-1].endswith("from offset 4 on, open for 100 d")


def test_a_name_that_a_terminal_would_obey_is_shown_with_escapes() -> None:
    evil = replace(HOLDER, transactional_id="\x1b[2Jshop")
    setting = TopicConfigEntry("k", "a\nb", True)
    topic = replace(TOPIC, partitions=(replace(HELD, open_transactions=(evil,)),), settings=(setting,))
    assert all(line.isprintable() for line in paragraphs(topic))


def test_programs_get_null_for_what_is_not_known() -> None:
    shown = json.loads(as_json_text(as_json(replace(TOPIC, settings=None, topic_id=""))))
    first, second = shown["partitions"]
    assert (shown["topic"], shown["topic_id"], shown["settings"]) == ("orders", None, None)
    assert first["open_transactions"] == [
        {
            "transactional_id": "shop-0",
            "producer": "7:1",
            "first_offset": 4,
            "started_at": BEGAN.isoformat(),
            "holds_back": True,
        },
        {"transactional_id": None, "producer": "8:0", "first_offset": 6, "started_at": None, "holds_back": False},
    ]
    assert second == {
        "partition": 1,
        "leader": None,
        "replicas": [1, 2],
        "in_sync": [],
        "earliest": None,
        "last_stable_offset": None,
        "high_watermark": None,
        "held_back": None,
        "size": None,
        "open_transactions": None,
    }
