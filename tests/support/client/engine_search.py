"""The native producer's engine and the broker's real rules, through everything that a few faults can do.

Always: a unit of work that was decided ends as it was decided, and nothing else does; no record is there twice, none is
missing, and they are in order. Sometimes: each fate that a request can have, each kind of crash, and what they lead to.
"""

from contextlib import nullcontext
from typing import Any

from dualwrite.broker.facts.transactions import TransactionStatus
from dualwrite.client.engine.transaction_state import TransactionResult
from dualwrite.client.protocol.requests import CommittedOffset, GroupMember
from dualwrite.client.terms.verbs import ProducerState
from dualwrite.errors import FencedError, KafkaUnavailableError, PrepareFailedError
from dualwrite.ids import PreparedTxnState, ProducerIdentity, TopicPartition
from dualwrite.records.control import Marker
from tests.support.broker.transactions import recorded
from tests.support.client.simulated_cluster import FATES, SimulatedCluster, SimulatedDriver
from tests.support.exhaustive.histories import Chooser, HistoryModel, Scenario

PARTITIONS = 2
UNITS = 2
ENDS = (
    "committed",
    "aborted before prepare",
    "aborted after prepare",
    "crash before prepare",
    "crash after prepare",
    "crash after the decision",
)
"""How a unit of work ends, if nothing else happens to it."""


class EngineSearchApplication:
    """A process that does units of work, and its successors: the row is what its database holds."""

    def __init__(self, chooser: Chooser, cluster: SimulatedCluster, seen: set[Any]) -> None:
        self.chooser = chooser
        self.cluster = cluster
        self.seen = seen
        self.row = PreparedTxnState()
        self.decided: list[int] = []
        self.driver = self.started()

    def started(self) -> SimulatedDriver:
        """A new process, which recovers what the one before left, and again if it is disturbed."""
        while True:
            driver = SimulatedDriver(self.cluster, batch_records=1)
            try:
                driver.init(keep=True)
                self.seen.add(("kept", bool(driver.engine.ongoing)))
                self.seen.add(("completed", driver.complete(self.row)))
                driver.init()
            except (FencedError, KafkaUnavailableError) as error:  # fenced by a copy, of its own even, that came late
                self.seen.add(f"{type(error).__name__} while recovering")
                continue
            return driver

    def restart(self, why: str) -> None:
        """The process dies."""
        self.seen.add(why)
        self.driver = self.started()

    def work(self, unit: int) -> None:
        """One unit of work; an application that gets an error aborts, or drops the producer and recovers."""
        ends = ENDS[self.chooser.choose(len(ENDS))]
        self.seen.add(ends)
        driver = self.driver
        try:
            driver.begin()
            offsets = [CommittedOffset("in", 0, unit)]
            driver.run(driver.engine.send_offsets_to_transaction(offsets, GroupMember("g"), driver.now))
            driver.produce(b"%d a" % unit, partition=0)
            driver.produce(b"%d b" % unit, b"%d c" % unit, partition=1)
            if ends.endswith("before prepare"):
                driver.turn()  # what is full is sent
                self.give_up(ends)
                return
            state = driver.prepare()
            self.seen.add(driver.engine.state)
            if ends.endswith("after prepare"):
                self.give_up(ends)
                return
            self.row = state
            self.decided.append(unit)
            if ends == "crash after the decision":
                self.restart(ends)
                return
            assert driver.complete(state) is TransactionResult.COMMITTED
        except (FencedError, KafkaUnavailableError, PrepareFailedError) as error:
            self.seen.add(driver.engine.state)
            self.seen.add(type(error).__name__)
            self.give_up("aborted" if driver.engine.state is ProducerState.ABORTABLE else "crash")

    def give_up(self, how: str) -> None:
        """The process aborts what it has begun, or dies; it dies too if it cannot abort."""
        if how.startswith("aborted"):
            try:
                self.seen.add(self.driver.abort())
                return
            except (FencedError, KafkaUnavailableError) as error:
                self.seen.add(f"{type(error).__name__} while aborting")
        self.restart(how)

    def check(self) -> None:
        """Everything is over: what is there is what was decided."""
        self.cluster.quiesce()
        self.driver = self.started()
        for partition, parts in enumerate(([b"a"], [b"b", b"c"])):
            log = self.cluster.logs.get(TopicPartition("t", partition))
            wanted = [b"%d %s" % (unit, part) for unit in self.decided for part in parts]
            assert (log.committed() if log else []) == wanted, (partition, self.decided)
            assert not log or not log.state.open_transactions
        ended = self.cluster.logs.get(TopicPartition("__consumer_offsets", 0))
        commits = [one for one in ended.entries if one.marker is Marker.COMMIT] if ended else []
        assert len(commits) == len(self.decided)


def engine_scenario(seen: set[Any], epoch: int | None = None) -> Scenario:
    """Two units of work, and what they leave; adds to ``seen`` what happened, and gives its names."""

    def scenario(chooser: Chooser) -> set[str]:
        own: set[Any] = set()
        cluster = SimulatedCluster(chooser.choose, partitions=PARTITIONS)
        cluster.gives_hints = epoch is None
        if epoch is not None:
            cluster.begin_at(recorded(TransactionStatus.EMPTY, ProducerIdentity(7, epoch)))
        application = EngineSearchApplication(chooser, cluster, own)
        for unit in range(UNITS):
            application.work(unit)
        application.check()
        own.update(cluster.seen)
        identities = {entry.producer for log in cluster.logs.values() for entry in log.entries}
        own.add(("producer ids", len({identity.producer_id for identity in identities})))
        seen.update(own)
        return {_name(what) for what in own}

    return scenario


def _name(what: Any) -> str:
    """The name of what a history has shown."""
    if isinstance(what, tuple):
        return " ".join(str(getattr(part, "name", part)) for part in what)
    return str(getattr(what, "name", what))


def engine_model() -> HistoryModel:
    """The model."""
    return HistoryModel(
        name="producer",
        about="the native producer's engine on the broker's rules, two units of work, every fate of a request",
        opened=lambda: nullcontext(engine_scenario(set())),
        asserted=(
            "a unit ends as it was decided, and nothing else does",
            "no record is there twice, none is missing, and they are in order",
            "no transaction is left open",
        ),
        events=(
            *ENDS,
            *(_name((key, fate)) for key, fates in FATES.items() for fate in fates),
            "FencedError",
            "PrepareFailedError",
            "duplicate",
            "kept True",
        ),
    )
