"""The metrics of requests: how many, how long, how many bytes, which errors."""

from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.metrics.metric import BrokerMetric, Value, metrics_into
from dualwrite.wire.apis import ApiKey
from dualwrite.wire.error_codes import ErrorCode, error_name

METRICS: list[BrokerMetric] = []
_metric = metrics_into(METRICS)

_FROM_THE_BEGINNING: dict[tuple[int, int], int] = {
    (key, ErrorCode.KAFKA_STORAGE_ERROR): 0 for key in (ApiKey.FETCH, ApiKey.LIST_OFFSETS)
}
"""Errors whose first one matters: Prometheus sees no increase in a series that begins with it."""


@_metric("counter", "api")
def requests_total(broker: BrokerContext) -> Value:
    """Requests that were answered, or carried out if they have no answer."""
    return [((ApiKey(key).name,), times.parts()["local"].count) for key, times in broker.meters.requests.items()]


@_metric("histogram", "api", "part")
def request_seconds(broker: BrokerContext) -> Value:
    """Seconds for each part of a request: ``queue`` (earlier requests of its connection come first), ``local`` (the
    broker's own work), ``fsync`` (waits for the disk), ``wait`` (other waits, such as a long poll), ``response`` (until
    the system has taken the answer). Only requests that waited count in ``fsync`` and ``wait``."""

    return [
        ((ApiKey(key).name, part), histogram)
        for key, times in broker.meters.requests.items()
        for part, histogram in times.parts().items()
    ]


@_metric("counter", "api", "error")
def request_errors_total(broker: BrokerContext) -> Value:
    """Error codes in answers. One answer may have many, for example one for each partition."""
    counts = {**_FROM_THE_BEGINNING, **broker.meters.errors}
    return [((ApiKey(key).name, error_name(code)), count) for (key, code), count in counts.items()]


@_metric("gauge")
def start_time_seconds(broker: BrokerContext) -> Value:
    """When the broker began to serve, after its recovery, in seconds since the epoch. Each change is a start."""
    return broker.meters.serving_since_ms / 1000


@_metric("counter")
def bytes_received_total(broker: BrokerContext) -> Value:
    """Bytes of requests."""
    return broker.meters.bytes_received


@_metric("counter")
def bytes_sent_total(broker: BrokerContext) -> Value:
    """Bytes of answers."""
    return broker.meters.bytes_sent
