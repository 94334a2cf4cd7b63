"""Two applications side by side: on one cluster, or with one name on two databases or on two clusters."""

from dataclasses import replace

from dualwrite.coordinator.rules.recovery_decision import Outcome
from tests.matrix.cells import Arrangement
from tests.matrix.ledger import PlaceLedger, RunVerdict, clear_record, judge_run
from tests.matrix.live import LiveApplication
from tests.matrix.places import MatrixPlace
from tests.matrix.strikes import LATEST_UNIT, Strike
from tests.support.apache_kafka.process import free_ports
from tests.support.crash.oracle import CallerReports
from tests.support.crash.world import CONFIG, CrashWorld
from tests.support.forked import ForkedBroker

_ON_RECORD = ("lost write", "aborted read", "torn transaction", "on record")
"""What two databases under one name may do to each other, if it is on record."""

_GIVEN_BACK = f"on record: {Outcome.HEURISTIC_HAZARD.value}"
"""What one cluster says of a slot that was given back in the other. Rows and records must agree nevertheless."""


class Neighbour:
    """The other application of a place.

    :param place: whose broker it shares, or whose database, as its arrangement says.
    """

    def __init__(self, place: MatrixPlace) -> None:
        self._place = place
        self._arrangement = place.key.arrangement
        directory = place.directory / "neighbour"
        directory.mkdir()
        has_own_cluster = self._arrangement is Arrangement.TWO_CLUSTERS
        url = place.task.url if has_own_cluster else f"sqlite:///{directory / 'items.db'}"
        broker = place.broker
        if has_own_cluster:
            (port,) = free_ports(1)
            broker = ForkedBroker(directory / "broker", listen=f"127.0.0.1:{port}", config=CONFIG)
        self.world = CrashWorld(directory, url, place.key.producer, broker)
        name = "other" if self._arrangement is Arrangement.TWO_APPLICATIONS else place.task.application
        self.world.task = replace(self.world.task, application=name, bears_database_errors=True)
        self._ledger = PlaceLedger(broker.bootstrap_servers, place.task.topics) if has_own_cluster else None

    def run(self, prefix: str, units: int, strike: Strike) -> LiveApplication:
        """Start it for so many units."""
        task = replace(self.world.task, prefix=prefix, units=units, seed=strike.chance.randrange(10**6))
        return LiveApplication(task, self.world.told)

    def judge(self, prefix: str, other_prefix: str) -> RunVerdict:
        """Judge a run of both applications, whose units have these prefixes."""
        ours, theirs = self._place.told, self.world.told
        self._place.world.told, self.world.told = CallerReports(), CallerReports()
        for engine in (self._place.engine, self.world.engine):
            engine.dispose()
        if self._ledger is not None:
            first = judge_run([self._place.engine], prefix, ours, self._place.ledger.read_on())
            clear_record(self._place.engine)  # both have one database
            verdict = added(first, judge_run([self.world.engine], other_prefix, theirs, self._ledger.read_on()))
            verdict.divergences = [line for line in verdict.divergences if not line.startswith(_GIVEN_BACK)]
            return verdict
        told = CallerReports(
            ours.begun | theirs.begun, ours.ok | theirs.ok, ours.no | theirs.no, ours.doubt | theirs.doubt
        )
        common = prefix[: len(prefix) - 1]
        engines = [self._place.engine, self.world.engine]
        verdict = judge_run(engines, common, told, self._place.ledger.read_on())
        if self._arrangement is Arrangement.TWO_DATABASES and verdict.heuristic:
            verdict.divergences = [line for line in verdict.divergences if not line.startswith(_ON_RECORD)]
        for engine in engines:
            clear_record(engine)
        return verdict

    def close(self) -> None:
        """Leave nothing running."""
        self.world.close()


def kill_beside_neighbour(strike: Strike, neighbour: Neighbour) -> RunVerdict:
    """SIGKILL of one application at the step, while the other is at work; both recover."""
    prefix, other_prefix = f"{strike.prefix}a", f"{strike.prefix}b"
    for _ in range(strike.times):
        with neighbour.run(other_prefix, 2 * LATEST_UNIT, strike) as other:
            with strike.start(prefix=prefix) as application:
                has_come = application.comes_to("paused")
                application.kill()
                strike.struck.count(has_come, int(has_come))
                strike.struck.note(application)
            other.let_end()
            strike.struck.note(other)
    recovering = replace(strike, prefix=prefix)
    recovering.recover()
    with neighbour.run(other_prefix, 0, strike) as other:
        code = other.let_end()
        if code != 0:
            strike.struck.problems.append(f"recovery of the other application: it ended with {code}")
    return neighbour.judge(prefix, other_prefix)


def added(first: RunVerdict, second: RunVerdict) -> RunVerdict:
    """Both together."""
    return RunVerdict(
        rows=first.rows + second.rows,
        records=[one + other for one, other in zip(first.records, second.records, strict=True)],
        units=first.units + second.units,
        unanswered=first.unanswered + second.unanswered,
        committed=first.committed + second.committed,
        aborted=first.aborted + second.aborted,
        replayed=first.replayed + second.replayed,
        heuristic=first.heuristic + second.heuristic,
        divergences=first.divergences + second.divergences,
    )
