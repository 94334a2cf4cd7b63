"""The errors of reads that the disk fails, or that find a damaged batch. They end one request, and not the broker."""

import logging

from dualwrite.broker.runtime.partition import Partition
from dualwrite.records.header import MalformedBatchError
from dualwrite.wire.error_codes import ErrorCode

logger = logging.getLogger(__name__)


def reading_error(partition: Partition, failure: OSError | MalformedBatchError) -> ErrorCode:
    """Log the ``failure`` to read ``partition``, and return the error for the client."""
    if isinstance(failure, OSError):
        logger.error("%s cannot be read: %s; check the disk", partition.name, failure)
        return ErrorCode.KAFKA_STORAGE_ERROR
    logger.error("%s is damaged: %s; restore its files, or delete the records", partition.name, failure)
    return ErrorCode.CORRUPT_MESSAGE
