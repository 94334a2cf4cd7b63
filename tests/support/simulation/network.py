"""Connections between client processes and the broker, in memory: bytes take time, and a connection may break.

On one connection bytes keep their order, as with TCP. But a request that was sent on a connection which its client has
lost may still arrive, after the client has sent it again on another: so requests are delayed, lost, repeated and
overtaken.
"""

from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dualwrite.broker.config import BrokerOptions
from dualwrite.broker.connection import Connection
from dualwrite.broker.net.frame_stream import FrameStream
from dualwrite.wire.apis import ApiKey
from tests.support.broker.frames import feed
from tests.support.simulation.faults import PlannedFault, SimulatedFault
from tests.support.simulation.scheduler import SimulatedProcess, SimulatedThread

if TYPE_CHECKING:
    from tests.support.simulation.broker.broker_machine import BrokerMachine

(LISTENER,) = BrokerOptions(Path("/data")).listeners
"""Where the broker's process listens."""

LATENCY = 0.004
"""The longest time in seconds that bytes are under way."""
_NOTICES = 0.05
"""The longest time in seconds until an end of a broken connection notices that."""
_MOST_BYTES = 104_857_600
_FOREVER = 60.0
"""Seconds after which a silent connection is closed at the broker."""
_CLOSES = 0.8
"""The probability that the system closes the connections of a process that is killed: a machine without power does
not."""
_NAMES = {int(key): key.name for key in ApiKey}


class SimulatedNetwork:
    """The connections of all processes.

    :param machine: the broker's.
    :param strikes: called with the lane of a client at each message that it sends; the fault that strikes there.
    :param note: called with a lane and with what happens there.
    """

    def __init__(
        self,
        machine: "BrokerMachine",
        strikes: Callable[[str], PlannedFault | None],
        note: Callable[[str, str], None],
    ) -> None:
        self.machine = machine
        self.strikes = strikes
        self.note = note
        self.links: list[SimulatedLink] = []

    def connect(self, process: SimulatedProcess, lane: str) -> "SimulatedLink":
        """A new connection of ``process``, on its way to the broker."""
        process.require_alive()
        link = SimulatedLink(self, process, lane)
        self.links.append(link)
        return link

    def client_died(self, process: SimulatedProcess) -> None:
        """The system closes the connections of a dead process, or the machine is off and none is closed."""
        closes = process.scheduler.chance() < _CLOSES
        for link in self.links:
            if link.process is process and not link.is_closed:
                link.is_closed = True
                if closes:
                    link.hang_up(process.scheduler.chance() * _NOTICES)

    def broker_died(self) -> None:
        """The broker's process has ended: its clients notice."""
        for link in self.links:
            link.broker_died()


class SimulatedLink:
    """One connection: the client's end, and the broker's with its transport."""

    def __init__(self, network: SimulatedNetwork, process: SimulatedProcess, lane: str) -> None:
        self.process = process
        self.lane = lane
        self.inbox: deque[bytes] = deque()
        """What has arrived at the client."""
        self.lost: str | None = None
        """Why the client has lost it."""
        self.is_closed = False
        """True once the client has closed it."""
        self.waiter: SimulatedThread | None = None
        """The client's thread that waits for it."""
        self._network = network
        self._scheduler = process.scheduler
        self._end: BrokerEnd | None = None
        self._is_cut = False
        """True if nothing that is sent arrives any more."""
        self._is_mute = False
        """True if no answer arrives any more."""
        self._there = self._here = self._scheduler.now
        self._scheduler.call_at(self._arrival(), self._accept)

    # --- the client's end

    def send(self, data: bytes) -> None:
        """Send ``data`` to the broker, if the connection is not broken. What a dead process does has no effect."""
        self.process.require_alive()
        if self.lost is not None or self.is_closed:
            return
        self._network.note(self.lane, _NAMES[int.from_bytes(data[4:6], "big")])
        fault = self._network.strikes(self.lane)
        if self._is_cut:
            return
        if fault is None:
            self._scheduler.call_at(self._arrival(), partial(self._deliver, data))
        else:
            self._strike(fault, data)

    def close(self) -> None:
        """The client closes its end."""
        if not self.is_closed and self.process.is_alive:
            self.is_closed = True
            if not self._is_cut:
                self.hang_up(self._scheduler.chance() * LATENCY)

    def hang_up(self, seconds: float) -> None:
        """Let the broker notice, in ``seconds`` and after all that was sent, that its client has gone."""
        self._scheduler.call_at(self._arrival(seconds), self._drop)

    def lose(self, reason: str) -> None:
        """The client notices that the connection is broken."""
        if self.lost is None and not self.is_closed:
            self.lost = reason
            self._wake()

    def _strike(self, fault: PlannedFault, data: bytes) -> None:
        kind, scheduler = fault.kind, self._scheduler
        noticed = scheduler.now + LATENCY + scheduler.chance() * _NOTICES
        if kind is SimulatedFault.SLOW_REQUEST:
            scheduler.call_at(self._arrival(fault.seconds), partial(self._deliver, data))
            return
        if kind is SimulatedFault.LOSE_ANSWER:
            self._is_mute = True
            scheduler.call_at(self._arrival(), partial(self._deliver, data))
        elif kind is SimulatedFault.LATE_REQUEST:
            scheduler.call_at(self._arrival(fault.seconds), partial(self._deliver, data))
        elif kind is SimulatedFault.SILENCE:
            self._is_cut = self._is_mute = True
            self.hang_up(_FOREVER)
            return
        else:
            self._is_cut = True
        self.hang_up(fault.seconds)
        scheduler.call_at(noticed, partial(self.lose, "the connection was reset"))

    def _arrival(self, seconds: float | None = None) -> float:
        """When what is sent now arrives at the broker."""
        delay = self._scheduler.chance() * LATENCY if seconds is None else seconds
        self._there = max(self._there, self._scheduler.now + delay)
        return self._there

    def _wake(self) -> None:
        if self.waiter is not None and self.process.is_alive:
            self._scheduler.wake(self.waiter)

    # --- the broker's end

    def _accept(self) -> None:
        if self._network.machine.is_listening:
            self._end = BrokerEnd(self, self._network.machine)
        else:
            self._scheduler.call_at(self._scheduler.now + self._scheduler.chance() * LATENCY, self._refuse)

    def _refuse(self) -> None:
        self.lose("Connection refused")

    def _deliver(self, data: bytes) -> None:
        if self._end is not None:
            self._end.receive(data)

    def _drop(self) -> None:
        if self._end is not None:
            self._end.lose()
            self._end = None
        self._is_cut = True

    def broker_died(self) -> None:
        """The process that served this connection has ended."""
        if self._end is not None:
            self._end = None
            self._is_cut = True
            seconds = self._scheduler.chance() * _NOTICES
            self._scheduler.call_at(self._back(seconds), partial(self.lose, "the connection was reset"))

    def answer(self, data: bytes) -> None:
        """The broker sends ``data``."""
        if not self._is_mute:
            self._scheduler.call_at(self._back(self._scheduler.chance() * LATENCY), partial(self._arrive, data))

    def broker_closed(self) -> None:
        """The broker has closed its end."""
        if not self._is_mute:
            self._scheduler.call_at(self._back(0.0), partial(self.lose, "the broker closed the connection"))

    def _back(self, seconds: float) -> float:
        self._here = max(self._here, self._scheduler.now + seconds)
        return self._here

    def _arrive(self, data: bytes) -> None:
        if self.lost is None and not self.is_closed:
            self.inbox.append(data)
            self._wake()


class BrokerEnd:
    """The broker's end of a connection: the transport of the broker's own FrameStream and Connection."""

    def __init__(self, link: SimulatedLink, machine: "BrokerMachine") -> None:
        self._link = link
        self._machine = machine
        self._loop = machine.loop
        self._is_closed = False
        self._is_read = True
        self._unread = bytearray()
        self._opening: bytes | None = None
        """Its request to open, if no connection to this process had asked the same before."""
        self._stream = FrameStream(_MOST_BYTES, lambda _: None, machine.context.memory)
        self._loop.call_soon(self._serve)

    def receive(self, data: bytes) -> None:
        """``data`` has arrived."""
        self._machine.heard()
        self._loop.call_soon(self._feed, data)

    def lose(self) -> None:
        """The client has gone."""
        self._loop.call_soon(self._lose)

    def _serve(self) -> None:
        self._stream.connection_made(self)  # type: ignore[arg-type]
        self._machine.serve(Connection(self._stream, self._machine.context, LISTENER))

    def _feed(self, data: bytes) -> None:
        if self._machine.openings.is_opening(data) and not self._is_closed:
            answer = self._machine.openings.answer_to(data)
            if answer is not None:
                self.write(answer)
                return
            self._opening = data
        self._unread += data
        feed(self._stream, self._unread, lambda: self._is_read and not self._is_closed)

    def _lose(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._stream.connection_lost(None)

    # --- the transport

    def get_extra_info(self, name: str) -> Any:
        return (self._link.lane, self._link.process.number) if name == "peername" else None

    def is_closing(self) -> bool:
        return self._is_closed

    def pause_reading(self) -> None:
        self._is_read = False

    def resume_reading(self) -> None:
        self._is_read = True
        self._loop.call_soon(self._feed, b"")

    def write(self, data: bytes) -> None:
        if self._opening is not None:
            self._machine.openings.keep(self._opening, data)
            self._opening = None
        if not self._is_closed:
            self._link.answer(data)

    def writelines(self, parts: Any) -> None:
        self.write(b"".join(parts))

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._link.broker_closed()
            self._loop.call_soon(self._stream.connection_lost, None)
