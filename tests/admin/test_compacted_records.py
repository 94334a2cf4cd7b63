"""Random transactions in a compacted topic: whatever compaction has left, each record has the state that it was given,
and those that are visible are those of a read_committed consumer."""

from collections.abc import Iterator

import pytest

from dualwrite.testing.kafka import KafkaBroker
from tests.support.admin.admin_site import AdminSite
from tests.support.admin.compacted_transactions import CompactedTransactions
from tests.support.forked import ForkedKafkaBroker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    config = {"log.cleaner.backoff.ms": "20"}
    with ForkedKafkaBroker(tmp_path_factory.mktemp("compacting"), config=config) as running:
        yield running


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_compaction_changes_no_state(site: AdminSite, seed: int) -> None:
    CompactedTransactions(site, seed).check()
