"""Every model of ``python -m tests.exhaustive``, each in the sizes that it is searched in, the small ones first.

A size that can be searched to its end is; the last one is searched as far as there is time.
"""

from collections.abc import Callable, Mapping

from tests.support.broker.transaction_search import VERSIONS, idle, kept, transactions
from tests.support.broker.transactions import MAX, TV1, TV2
from tests.support.client.engine_search import engine_model
from tests.support.coordinator.searches.driver_search import driver_model
from tests.support.coordinator.searches.machine_search import machine_model
from tests.support.coordinator.searches.recovery_search import Rules, recovery
from tests.support.coordinator.searches.replay_search import replay_model
from tests.support.exhaustive.handover import handover
from tests.support.exhaustive.leases import leases
from tests.support.exhaustive.power_cut import power_cut
from tests.support.exhaustive.results import Model


def _transactions() -> Model:
    overflows = (
        "overflow of InitProducerId",
        "overflow of EndTransaction",
        "overflow of TimeOut",
        "overflow of InitProducerId of a kept transaction",
    )
    retries = ("InitProducerId retried", "EndTransaction retried under TV1", "EndTransaction retried under TV2")
    return transactions(
        [
            *(idle(epoch, versions) for versions in VERSIONS for epoch in (5, MAX - 4, MAX - 3, MAX - 2)),
            *(kept(epoch, MAX - 1, versions) for versions in VERSIONS for epoch in (MAX - 2, MAX - 1)),
        ],
        "two producers of one transactional id, of either version, also where epochs run out",
        ("marker written again", *retries, *overflows),
    )


MODELS: Mapping[str, tuple[Callable[[], Model], ...]] = {
    "machine": (machine_model,),
    "recovery": (
        lambda: recovery(5, Rules()),
        lambda: recovery(MAX - 3, Rules(most_late=2)),
        lambda: recovery(5, Rules(most_late=2, most_units=4, most_starts=4)),
    ),
    "handover": (lambda: handover(1, 2), lambda: handover(2, 3)),
    "transactions": (_transactions,),
    "power-cut": (
        lambda: power_cut((TV2, TV2), 1, 2),
        lambda: power_cut((TV1, TV2), 1, 2),
        lambda: power_cut((TV2, TV2), 2, 2),
    ),
    "leases": (lambda: leases(1, 3, 0, 0), lambda: leases(1, 3, 1, 1)),
    "producer": (engine_model,),
    "coordinator": (driver_model, lambda: driver_model(("one", "two"), "background")),
    "replay": (replay_model,),
}
"""name -> its sizes."""
