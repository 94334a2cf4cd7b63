"""What negative controls of whole batches replace; see tests/support/breaking/breakable.py."""

from dualwrite.spark.batch import runs
from dualwrite.spark.batch.runs import Runs
from tests.support.breaking.breakable import Breakable

KNOWN_BATCH = Breakable(runs, "known_batch")
RECORD_BATCH = Breakable(runs, "record_batch")
END = Breakable(Runs, "_end")
REQUIRE_OPEN = Breakable(Runs, "_require_open")
