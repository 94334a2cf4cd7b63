"""A negative control: an accumulator that sends a batch again under another sequence number."""

from dualwrite.client.engine.accumulator import ProducerBatch, RecordAccumulator


def forgetful(self: RecordAccumulator, batch: ProducerBatch, at: float, why: str, code: int = 0) -> None:
    """Sends a batch again under a number of its own."""
    self.queue(batch.queue.topic, batch.queue.partition).in_flight.remove(batch)
    batch.sequence = -1
    batch.queue.waiting.append(batch)
    self._sending[batch.queue] = None
