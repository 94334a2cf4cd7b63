"""What negative controls of whole batches replace; see tests/support/breaking/breakable.py."""

from dualwrite.spark.batch.runs import Runs
from tests.support.breaking.breakable import Breakable

COMMITTED_BY = Breakable(Runs, "_committed_by")
RECORD_BATCH = Breakable(Runs, "_record_batch")
END = Breakable(Runs, "_end")
REQUIRE_OPEN = Breakable(Runs, "_require_open")
