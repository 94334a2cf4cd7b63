"""The native producer's connections: which brokers it tries when none can be reached."""

from dualwrite.client.config.producer_settings import ProducerSettings
from dualwrite.client.config.settings import ClientSettings
from dualwrite.client.engine.connection_states import ConnectionStates
from dualwrite.client.engine.contract import Open
from dualwrite.client.terms.endpoint import Endpoint
from dualwrite.errors import KafkaUnavailableError

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
