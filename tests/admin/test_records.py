"""The records of a topic with the state of their transactions, by function and by ``dualwrite consume``."""

import json
from datetime import datetime, timedelta, timezone
from itertools import islice

import pytest
from confluent_kafka import TopicPartition as Place
from confluent_kafka.admin import AdminClient

from dualwrite.admin import records as module
from dualwrite.admin.records import read_records
from dualwrite.admin.views import TopicRecord
from dualwrite.client.terms.record_states import RecordState
from dualwrite.errors import InputError, KafkaRefusedError
from dualwrite.ids import TopicPartition
from tests.support.admin.admin_site import AdminSite
from tests.support.peer_clients.kafka_helpers import PATIENCE, fresh_name

OPEN, COMMITTED, ABORTED, PLAIN = RecordState.OPEN, RecordState.COMMITTED, RecordState.ABORTED, RecordState.PLAIN


def seen(site: AdminSite, topic: str, **options: object) -> list[tuple[str, RecordState, bool]]:
    """Key, state and visibility of each record that ``read_records`` gives."""
    records = read_records(site.config, topic, **options)  # type: ignore[arg-type]
    return [((record.key or b"").decode(), record.state, record.is_visible) for record in records]


def every_state(site: AdminSite) -> tuple[str, dict[str, str]]:
    """A topic with a record of each kind, and the transactional id by key. ``cake`` is open, with others behind it."""
    topic = site.topic()
    site.plain(topic, "plain")
    first = site.producer().write(topic, "tea").commit().write(topic, "coffee").abort()
    second = site.producer().write(topic, "cake")
    first.write(topic, "late").commit().write(topic, "lost").abort()
    site.plain(topic, "behind")
    return topic, {**dict.fromkeys(("tea", "coffee", "late", "lost"), first.name), "cake": second.name}


def test_read_committed_shows_what_its_consumers_see(site: AdminSite) -> None:
    topic, names = every_state(site)
    assert seen(site, topic) == [("plain", PLAIN, True), ("tea", COMMITTED, True)]
    tea = list(read_records(site.config, topic))[1]
    assert tea == TopicRecord(
        TopicPartition(topic, 0),
        1,
        tea.timestamp,
        b"tea",
        b"value of tea",
        (),
        COMMITTED,
        True,
        tea.producer,
        names["tea"],
    )


def test_all_shows_every_record_with_the_state_of_its_transaction(site: AdminSite) -> None:
    topic, names = every_state(site)
    assert seen(site, topic, committed=False) == [
        ("plain", PLAIN, True),
        ("tea", COMMITTED, True),
        ("coffee", ABORTED, False),
        ("cake", OPEN, False),
        ("late", COMMITTED, False),
        ("lost", ABORTED, False),
        ("behind", PLAIN, False),
    ]
    shown = {record.key.decode(): record for record in read_records(site.config, topic, committed=False) if record.key}
    assert {key: record.transactional_id for key, record in shown.items() if record.transactional_id} == names
    assert not shown["plain"].producer
    assert shown["cake"].producer


def test_markers_are_shown_if_they_are_asked_for(site: AdminSite) -> None:
    topic, _ = every_state(site)
    states = [record.state.value for record in read_records(site.config, topic, committed=False, markers=True)]
    assert states == [
        "plain",
        *("committed", "commit-marker"),
        *("aborted", "abort-marker"),
        "open",
        *("committed", "commit-marker"),
        *("aborted", "abort-marker"),
        "plain",
    ]
    visible = [record.state.value for record in read_records(site.config, topic, markers=True)]
    assert visible == ["plain", "committed", "commit-marker", "abort-marker"]


def test_reading_begins_in_the_middle_of_an_aborted_transaction(site: AdminSite) -> None:
    topic = site.topic()
    site.producer().write(topic, "a", "b", "c").abort().write(topic, "d").commit()
    assert seen(site, topic, start=1) == [("d", COMMITTED, True)]
    assert seen(site, topic, start=1, committed=False)[0] == ("b", ABORTED, False)


def test_a_long_log_is_read_in_pieces(site: AdminSite, monkeypatch: pytest.MonkeyPatch) -> None:
    topic, _ = every_state(site)
    whole = seen(site, topic, committed=False, markers=True)
    monkeypatch.setattr(module, "PIECE_BYTES", 1)  # one batch each
    assert seen(site, topic, committed=False, markers=True) == whole


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compressed_records_are_read(site: AdminSite, codec: str) -> None:
    topic = site.topic(compression_type=codec)
    site.plain(topic, "a", "b", value="x" * 1000, headers=[("h", b"1"), ("n", None)])
    records = list(read_records(site.config, topic))
    assert [record.value for record in records] == [b"x" * 1000] * 2
    assert records[0].headers == (("h", b"1"), ("n", None))


def test_partitions_come_one_after_the_other(site: AdminSite) -> None:
    topic = site.topic(partitions=3)
    site.plain(topic, "c", partition=2)
    site.plain(topic, "a", "b", partition=0)
    assert [key for key, *_ in seen(site, topic)] == ["a", "b", "c"]
    assert [key for key, *_ in seen(site, topic, partitions=[2, 1])] == ["c"]
    with pytest.raises(InputError, match="has no partition 3; its partitions are 0 to 2"):
        seen(site, topic, partitions=[3])


def test_reading_begins_at_a_place(site: AdminSite) -> None:
    topic = site.topic()
    site.plain(topic, "old", timestamp=1_000_000_000_000)
    site.plain(topic, "new", timestamp=1_000_000_060_000)
    moment = datetime.fromtimestamp(1_000_000_030, timezone.utc)
    assert [key for key, *_ in seen(site, topic, start=moment)] == ["new"]
    assert [key for key, *_ in seen(site, topic, start=1)] == ["new"]
    exact = datetime.fromtimestamp(1_000_000_060, timezone.utc)
    assert [key for key, *_ in seen(site, topic, start=exact)] == ["new"]
    assert seen(site, topic, start=exact + timedelta(microseconds=1)) == []
    for nothing in ("end", 2, 99, datetime.now(timezone.utc)):
        assert seen(site, topic, start=nothing) == []
    with pytest.raises(InputError, match="use a time since 1970 with its zone"):
        seen(site, topic, start=datetime(2026, 1, 1))
    with pytest.raises(InputError, match="offset -1: use 0 or more"):
        seen(site, topic, start=-1)


def test_a_time_is_exact_to_the_millisecond(site: AdminSite) -> None:
    """Floating point would make the second of these moments a millisecond earlier."""
    topic, milliseconds = site.topic(), 1078206829386
    for number in (milliseconds - 1, milliseconds):
        site.plain(topic, str(number), timestamp=number)
    moment = datetime.fromtimestamp(milliseconds // 1000, timezone.utc) + timedelta(milliseconds=milliseconds % 1000)
    assert [key for key, *_ in seen(site, topic, start=moment)] == [str(milliseconds)]


def test_deleted_records_are_passed_over(site: AdminSite) -> None:
    topic = site.topic()
    site.plain(topic, "a", "b", "c")
    reader = read_records(site.config, topic, start=0, follow=True, sleep=lambda _: None)
    delete_before(site, topic, 2)
    assert [record.key for record in islice(read_records(site.config, topic, start=0), 5)] == [b"c"]
    assert next(iter(reader)).key == b"c"
    reader.close()  # type: ignore[attr-defined]


def test_records_that_are_deleted_while_the_log_is_read_are_passed_over(site: AdminSite) -> None:
    topic = site.topic()
    site.plain(topic, "a")
    looks = []

    def between(_: float) -> None:
        looks.append(1)
        if len(looks) == 1:
            site.plain(topic, "b")
            site.plain(topic, "c")
            delete_before(site, topic, 2)

    records = read_records(site.config, topic, follow=True, limit=2, sleep=between)
    assert [record.key for record in records] == [b"a", b"c"]


def delete_before(site: AdminSite, topic: str, offset: int) -> None:
    admin = AdminClient(site.config)
    (deleted,) = admin.delete_records([Place(topic, 0, offset)]).values()
    assert deleted.result(PATIENCE).low_watermark == offset


def test_follow_goes_on_with_new_records_up_to_the_limit(site: AdminSite) -> None:
    topic = site.topic(partitions=2)
    site.plain(topic, "a")
    looks = []

    def between(seconds: float) -> None:
        looks.append(seconds)
        site.plain(topic, f"new {len(looks)}", partition=len(looks) % 2)

    records = read_records(site.config, topic, follow=True, limit=4, sleep=between)
    assert [record.key for record in records] == [b"a", b"new 1", b"new 2", b"new 3"]
    assert set(looks) == {module.FOLLOW_SECONDS}


def test_follow_shows_records_behind_an_open_transaction_once_it_has_ended(site: AdminSite) -> None:
    topic = site.topic()
    writer = site.producer().write(topic, "held")
    site.plain(topic, "behind")
    looks: list[int] = []

    def between(_: float) -> None:
        looks.append(1)
        if len(looks) == 2:
            writer.commit()

    records = read_records(site.config, topic, follow=True, limit=2, sleep=between)
    assert [(record.key, record.state) for record in records] == [(b"held", COMMITTED), (b"behind", PLAIN)]
    assert len(looks) >= 2


def test_follow_shows_each_record_of_all_once(site: AdminSite) -> None:
    topic = site.topic()
    writer = site.producer().write(topic, "open")
    looks: list[int] = []

    def between(_: float) -> None:
        looks.append(1)
        if len(looks) == 1:
            site.plain(topic, "behind")
        else:
            writer.commit()

    records = read_records(site.config, topic, committed=False, markers=True, follow=True, limit=3, sleep=between)
    assert [record.state.value for record in records] == ["open", "plain", "commit-marker"]


def test_a_transaction_that_ends_while_the_records_before_it_are_shown_is_not_shown_as_open(site: AdminSite) -> None:
    topic = site.topic()
    site.plain(topic, "shown at once")
    site.producer().write(topic, "open")
    ended = site.producer().write(topic, "ended")
    records = iter(read_records(site.config, topic, committed=False))
    assert next(records).key == b"shown at once"
    ended.commit()  # its marker is behind the end that the partition had
    assert [(record.key, record.state) for record in records] == [(b"open", OPEN), (b"ended", COMMITTED)]


def test_nothing_is_left_behind_by_reading(site: AdminSite) -> None:
    topic = site.topic()
    site.plain(topic, "a")
    before = site.rows("groups", "list") if "GROUP" in site.run("groups", "list").out else []
    assert seen(site, topic) == [("a", PLAIN, True)]
    after = site.rows("groups", "list") if "GROUP" in site.run("groups", "list").out else []
    assert after == before


def test_a_topic_that_does_not_exist_is_not_created(site: AdminSite) -> None:
    name = fresh_name()
    with pytest.raises(KafkaRefusedError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        seen(site, name)
    assert name not in site.run("topics", "list").out


def test_the_command_shows_columns(site: AdminSite) -> None:
    topic, names = every_state(site)
    assert site.rows("consume", topic, "--all") == [
        ["0", "0", "plain", "-", "plain", "value", "of", "plain"],
        ["0", "1", "committed", names["tea"], "tea", "value", "of", "tea"],
        ["0", "3", "aborted", names["coffee"], "coffee", "value", "of", "coffee"],
        ["0", "5", "open", names["cake"], "cake", "value", "of", "cake"],
        ["0", "6", "committed-hidden", names["late"], "late", "value", "of", "late"],
        ["0", "8", "aborted", names["lost"], "lost", "value", "of", "lost"],
        ["0", "10", "plain-hidden", "-", "behind", "value", "of", "behind"],
    ]
    assert ["0", "2", "commit-marker", names["tea"], "-", "-"] in site.rows("consume", topic, "--all", "--markers")
    assert len(site.rows("consume", topic, "--all", "--max", "3")) == 3
    assert [row[4] for row in site.rows("consume", topic, "--all", "--from", "6", "--max", "1")] == ["late"]
    assert len(site.rows("consume", topic, "--all", "--max", str(10**30))) == 7


def test_the_command_says_why_a_read_committed_consumer_stops(site: AdminSite) -> None:
    topic, names = every_state(site)
    code, out, err = site.run("consume", topic)
    assert (code, out.count("\n")) == (0, 3)
    assert err == (
        "dualwrite: partition 0: read_committed consumers stop at offset 5, 6 offsets before the end, because of "
        f"transaction {names['cake']}, which is open; --all shows what follows\n"
    )
    assert site.run("consume", topic, "--max", "2").err == ""


def test_the_command_for_programs_has_a_line_for_each_record(site: AdminSite) -> None:
    topic, names = every_state(site)
    site.producer().write(topic, "").abort()
    lines = [json.loads(line) for line in site.run("consume", topic, "--all", "--markers", "--json").out.splitlines()]
    assert [line["offset"] for line in lines] == list(range(len(lines)))
    tea, marker = lines[1], lines[2]
    producer, timestamp = tea.pop("producer"), tea.pop("timestamp")
    assert producer.count(":") == 1
    assert timestamp > 0
    assert tea == {
        "topic": topic,
        "partition": 0,
        "offset": 1,
        "state": "committed",
        "visible": True,
        "transactional_id": names["tea"],
        "key": "tea",
        "value": "value of tea",
        "headers": [],
    }
    assert (marker["state"], marker["key"], marker["value"]) == ("commit_marker", None, None)
    assert site.run("consume", site.topic(), "--json") == (0, "", "")


def test_an_empty_topic_has_no_records(site: AdminSite) -> None:
    assert site.run("consume", site.topic()) == (0, "no records\n", "")


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (
            ("t-missing",),
            "the cluster has no topic 't-missing': UNKNOWN_TOPIC_OR_PARTITION (3); `dualwrite topics list` shows which"
            " there are",
        ),
        (("a b",), "'a b' is not a topic's name"),
        (("t", "--max", "0"), "--max 0: use 1 or more"),
        (
            ("t", "--from", "yesterday"),
            "argument --from: 'yesterday': use beginning, end, an offset, or a time such as",
        ),
        (("t", "--all", "--committed"), "argument --committed: not allowed with argument --all"),
        (("t", "--format", "avro"), "argument --format: invalid choice: 'avro'"),
    ],
)
def test_a_mistake_is_one_line(site: AdminSite, words: tuple[str, ...], complaint: str) -> None:
    code, out, err = site.run("consume", *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"dualwrite: {complaint}")
