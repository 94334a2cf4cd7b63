"""A control plane on a clock that moves only when it sleeps."""

from dualwrite.client.admin.control_plane import ControlPlane
from tests.support.client.scripted_broker import FakeClock, ScriptedBroker


class Control(ControlPlane):
    """A control plane on a clock that only sleeping moves."""

    def __init__(self, broker: ScriptedBroker) -> None:
        clock = FakeClock()
        config = {"bootstrap.servers": broker.bootstrap_servers, "socket.timeout.ms": 5000}
        super().__init__(config, timeout=5, clock=clock.monotonic, sleep=clock.sleep)

    def __enter__(self) -> "Control":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
