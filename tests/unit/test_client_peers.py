"""The native producer's connections: whom it tries when nobody can be reached."""

from dualwrite.client.endpoint import Endpoint
from dualwrite.client.engine_types import EngineSettings, Open
from dualwrite.client.peers import Peers
from dualwrite.errors import KafkaUnavailableError

RETIRED, CURRENT = Endpoint("retired", 1), Endpoint("current", 1)


def test_in_an_outage_no_broker_is_tried_that_the_cluster_no_longer_has() -> None:
    peers = Peers(EngineSettings((CURRENT,), "app-0"))
    for endpoint, now in ((RETIRED, 0.0), (CURRENT, 10.0)):
        peers.open_peer(endpoint, now)
        peers.lost(endpoint, KafkaUnavailableError("gone"), now)
    peers.take_commands()
    assert peers.any_open_peer((CURRENT,), 20.0) is None
    assert peers.take_commands() == [Open(CURRENT)]
