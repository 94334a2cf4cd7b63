"""The native producer's connections: which brokers it tries when none can be reached."""

from dualwrite.client.config.producer_settings import ProducerSettings
from dualwrite.client.config.settings import ClientSettings
from dualwrite.client.engine.connection_states import ConnectionStates
from dualwrite.client.engine.contract import Close, Open
from dualwrite.client.terms.endpoint import Endpoint
from dualwrite.client.terms.versions import NO_VERSIONS
from dualwrite.errors import KafkaUnavailableError
from dualwrite.wire.apis import ApiKey

RETIRED, CURRENT = Endpoint("retired", 1), Endpoint("current", 1)


def test_removed_brokers_are_not_tried_in_an_outage() -> None:
    peers = ConnectionStates(ProducerSettings(ClientSettings((CURRENT,)), "app-0"))
    for endpoint, now in ((RETIRED, 0.0), (CURRENT, 10.0)):
        peers.open_connection(endpoint, now)
        peers.lost(endpoint, KafkaUnavailableError("gone"), now)
    peers.take_commands()
    assert peers.any_open_connection((CURRENT,), 20.0) is None
    assert peers.take_commands() == [Open(CURRENT)]


def test_a_removed_brokers_error_is_not_named_as_a_reason() -> None:
    peers = ConnectionStates(ProducerSettings(ClientSettings((CURRENT,)), "app-0"))
    for endpoint in (RETIRED, CURRENT):
        peers.open_connection(endpoint, 0.0)
        peers.lost(endpoint, KafkaUnavailableError(f"broker {endpoint}: gone"), 0.0)
    assert peers.why_not() == [f"broker {RETIRED}: gone", f"broker {CURRENT}: gone"]
    peers.forget_back_offs({CURRENT})
    assert peers.why_not() == [f"broker {CURRENT}: gone"]


def test_a_removed_broker_being_tried_does_not_delay_other_brokers() -> None:
    peers = ConnectionStates(ProducerSettings(ClientSettings((CURRENT,)), "app-0"))
    peers.open_connection(RETIRED, 0.0)
    peers.lost(RETIRED, KafkaUnavailableError("gone"), 0.0)
    peers.open_connection(RETIRED, 10.0)
    peers.forget_back_offs({CURRENT})
    peers.take_commands()
    peers.any_open_connection((CURRENT,), 10.0)
    assert peers.take_commands() == [Open(CURRENT)]


def refused(peers: ConnectionStates, now: float) -> float:
    """Let an attempt to connect fail; the pause until the next one."""
    peers.open_connection(CURRENT, now)
    assert Open(CURRENT) in peers.take_commands()
    peers.lost(CURRENT, KafkaUnavailableError("refused"), now)
    peers.open_connection(CURRENT, now)  # it is wanted
    pause = peers.wake_at(now) - now
    assert peers.take_commands() == [], "it begins at once"
    return pause


def test_a_broker_that_refuses_is_tried_again_after_growing_pauses_until_it_was_open_once() -> None:
    settings = ProducerSettings(ClientSettings((CURRENT,)), "app-0", reconnect_backoff=0.5, reconnect_backoff_max=1.5)
    peers = ConnectionStates(settings)
    peers.open_connection(RETIRED, -5.0)
    peers.lost(RETIRED, KafkaUnavailableError("gone"), -5.0)  # its pause is over
    peers.take_commands()
    assert [refused(peers, now) for now in (0.0, 10.0, 20.0, 30.0)] == [0.5, 1.0, 1.5, 1.5]
    peers.open_connection(CURRENT, 40.0)
    peers.opened(CURRENT, NO_VERSIONS, 40.0)
    assert peers.why_not() == ["gone"], "an old error explains nothing"
    peers.lost(CURRENT, KafkaUnavailableError("reset"), 50.0)
    peers.take_commands()
    assert [refused(peers, now) for now in (50.0, 60.0)] == [0.5, 1.0]


def test_the_least_busy_connection_is_asked() -> None:
    peers = ConnectionStates(ProducerSettings(ClientSettings((CURRENT,)), "app-0"))
    for endpoint in (RETIRED, CURRENT):
        peers.open_connection(endpoint, 0.0)
        peers.opened(endpoint, NO_VERSIONS, 0.0)
    busy = peers.any_open_connection((), 0.0)
    assert busy is not None
    peers.send(busy, ApiKey.METADATA, 9, None, None, 0.0)
    other = peers.any_open_connection((), 0.0)
    assert other is not None
    assert other.endpoint != busy.endpoint


def test_only_a_connection_that_was_not_used_for_long_and_waits_for_nothing_is_closed() -> None:
    peers = ConnectionStates(ProducerSettings(ClientSettings((CURRENT,)), "app-0", max_idle=10.0))
    peers.open_connection(CURRENT, 0.0)
    peers.opened(CURRENT, NO_VERSIONS, 5.0)
    peers.take_commands()
    peers.expire(14.0)
    assert peers.take_commands() == [], "it was opened nine seconds ago"
    used = peers.open_connection(CURRENT, 14.0)
    assert used is not None
    peers.send(used, ApiKey.METADATA, 9, None, None, 14.0)
    peers.expire(24.0)
    peers.take_commands()
    (tag,) = used.asked
    assert peers.open_connection(CURRENT, 24.0) is used, "an answer is due"
    peers.answered(CURRENT, tag)
    peers.expire(23.9)
    assert peers.take_commands() == [], "it was used less than ten seconds ago"
    peers.open_connection(RETIRED, 14.0)
    peers.take_commands()
    peers.expire(25.0)
    assert peers.take_commands() == [Close(CURRENT)], "the other is not open yet"
