"""Units of work with servers that are not on this machine: each request takes a round trip.

    python -m benchmarks.distant_units [--round-trip-ms 1] [--rounds 3] [--seconds 3] [--workers 1]
                                       [--contenders NAME ...] [--json FILE] [--markdown FILE] [--directory DIR]

PostgreSQL and the bundled broker each lie behind a process that delays every byte by half of the round trip. So what
counts is how many round trips a unit waits for one after another, and not whose processor time it is. The rest is as in
benchmarks.units: throughput of units of one row and one record of 200 bytes.
"""

from argparse import ArgumentTypeError, Namespace
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from sqlalchemy import make_url

from benchmarks.contenders import Bundled
from benchmarks.distance import Distance, distant
from benchmarks.rounds import Rounds, WithKafka, at_least, measure, parser_of, positive_seconds
from benchmarks.standings import Standings
from benchmarks.unit_contenders import BACKGROUND, CONTENDERS, DATABASE, LIBRDKAFKA, NAIVE, NATIVE, TRANSACTION
from benchmarks.unit_places import DATABASES
from benchmarks.units import UnitsScale, UnitsSite, standings

_COMPARED = (NATIVE, BACKGROUND, LIBRDKAFKA, NAIVE, TRANSACTION, DATABASE)


class DistantBroker(Bundled):
    """The bundled broker, which its clients reach through ``distance`` only."""

    def __init__(self, directory: Path, distance: Distance) -> None:
        self._address = f"127.0.0.1:{distance.port}"
        self._distance = distance
        super().__init__(directory, "os", {"advertised.listeners": f"PLAINTEXT://{self._address}"})

    @property
    def bootstrap(self) -> str:
        """HOST:PORT of the distance."""
        return self._address

    def start(self) -> None:
        """Start it."""
        super().start()
        host, _, port = super().bootstrap.rpartition(":")
        self._distance.leads_to((host, int(port)))


def compare(options: Namespace, scale: UnitsScale, rounds: Rounds) -> Iterator[Standings]:
    """One table for each number of workers."""
    seconds = options.round_trip_ms / 1000
    with ExitStack() as stack:
        near = stack.enter_context(DATABASES["postgresql"](rounds.directory, ""))
        url = make_url(near.url)
        distance = stack.enter_context(distant(seconds))
        (server_socket,) = Path(str(url.query["host"])).glob(".s.PGSQL.*[0-9]")
        distance.leads_to(str(server_socket))
        far = url.set(host="127.0.0.1", port=distance.port, query={}).render_as_string(hide_password=False)
        title = f"{near.title}, {options.round_trip_ms:g} ms away"
        broker = DistantBroker(rounds.directory, stack.enter_context(distant(seconds)))
        (broker,) = stack.enter_context(rounds.running([broker]))
        site = UnitsSite(broker, replace(near, title=title, url=far))
        for workers in scale.workers:
            yield standings("throughput", workers, site, "os", scale, rounds)


def milliseconds(text: str) -> float:
    """Reads an option that is a distance."""
    try:
        return positive_seconds(text)
    except ArgumentTypeError:
        raise ArgumentTypeError(f"{text!r}: allowed: milliseconds, more than 0") from None


def main() -> None:
    """Measure and print."""
    parser = parser_of((__doc__ or "").partition("\n")[0], ["throughput"], warm_up=1, kafka=WithKafka.NEVER)
    parser.set_defaults(rounds=3)
    parser.add_argument("--round-trip-ms", type=milliseconds, default=1.0, help="to either server and back")
    parser.add_argument("--contenders", nargs="+", choices=list(CONTENDERS), default=list(_COMPARED))
    parser.add_argument("--seconds", type=positive_seconds, default=3.0, help="of each measurement")
    parser.add_argument("--workers", type=at_least(1), nargs="+", default=[1])
    options = parser.parse_args()
    scale = UnitsScale(options.seconds, tuple(options.contenders), tuple(options.workers))
    measure(options, lambda rounds: compare(options, scale, rounds))


if __name__ == "__main__":
    main()
