"""What negative controls of the broker replace; see tests/support/breaking/breakable.py."""

from dualwrite.broker.api.transactions import txn_offset_commit
from dualwrite.broker.core import transaction_rules as rules
from dualwrite.broker.log.replacement import Replacement
from dualwrite.broker.runtime import coordinator, flusher
from dualwrite.broker.runtime.cluster import Cluster
from dualwrite.broker.runtime.coordinator import TransactionCoordinator
from dualwrite.broker.runtime.flusher import Flusher
from dualwrite.broker.runtime.groups.group_log import GroupLog
from dualwrite.broker.runtime.groups.offsets import GroupOffsets
from dualwrite.broker.runtime.internal_topics import InternalTopic
from dualwrite.broker.runtime.journaling import FlushedJournal
from dualwrite.broker.runtime.partition import Partition
from tests.support.breaking.breakable import Breakable

IDENTITY_ERROR = Breakable(rules, "_identity_error")
IS_RETRY = Breakable(rules, "_is_retry")
ABORT_BY_COORDINATOR = Breakable(rules, "_abort_by_coordinator")
KEEP_PREPARED = Breakable(rules, "_keep_prepared")
BUMPED = Breakable(rules, "_bumped")
COMPLETE = Breakable(rules, "_complete")
PREPARE = Breakable(rules, "_prepare")
MARKERS_OF = Breakable(rules, "markers_of")

WRITE_MARKERS = Breakable(TransactionCoordinator, "_write_markers")
EXECUTE = Breakable(TransactionCoordinator, "execute")
HAS_UNSYNCED_END = Breakable(TransactionCoordinator, "_has_unsynced_end")
IS_TOLD_BY_RECORDS = Breakable(TransactionCoordinator, "_is_told_by_records")
GIVES_IDENTITY = Breakable(coordinator, "_gives_identity")
LACKS_MARKER = Breakable(coordinator, "lacks_marker")
LOST_MARKER = Breakable(coordinator, "lost_marker")
LOST_JOIN = Breakable(coordinator, "lost_join")
FINISH_DECIDED = Breakable(TransactionCoordinator, "finish_decided")
SKIP_PRODUCER_IDS = Breakable(Cluster, "skip_producer_ids")
BARRIER = Breakable(Flusher, "barrier")
AFTER_CRITICAL = Breakable(flusher._Critical, "__exit__")
APPEND_TO_JOURNAL = Breakable(FlushedJournal, "append")
APPEND_TO_TOPIC = Breakable(InternalTopic, "append")
CARRY_OUT = Breakable(Cluster, "_carry_out")
COMMIT_OFFSETS = Breakable(GroupOffsets, "commit_now")
REFUSES_EPOCH = Breakable(GroupLog, "refuses_epoch")
JOIN_WITH_OFFSETS = Breakable(txn_offset_commit, "join_transaction")
FORGET_TOPIC = Breakable(GroupOffsets, "_forget_topic")
PLAN_RECOVERY_POINT = Breakable(Partition, "_plan_recovery_point")
TRUNCATE_BEFORE = Breakable(Partition, "truncate_before")
FINISH_REPLACEMENT = Breakable(Replacement, "finish")
