"""The metrics of connections, authentication and authorization. No label has the name of a user or an address."""

from dualwrite.broker.access.acls import AclOperation, ResourceType
from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.metrics.metric import BrokerMetric, Value, metrics_into

METRICS: list[BrokerMetric] = []
_metric = metrics_into(METRICS)


@_metric("gauge", "listener", "principal_type")
def connections(broker: BrokerContext) -> Value:
    """Connections that are open. The type of the principal is ``user``, ``anonymous``, or ``none`` while the client
    still has to authenticate."""
    return list(broker.meters.connections().items())


@_metric("counter", "mechanism", "result")
def authentications_total(broker: BrokerContext) -> Value:
    """Authentications by SASL, re-authentications included; the result is ``success`` or ``failure`` (Kafka's
    successful-authentication-total and failed-authentication-total)."""
    counts = broker.meters.authentications.items()
    return [((mechanism, "success" if is_success else "failure"), count) for (mechanism, is_success), count in counts]


@_metric("counter", "mechanism", "reason")
def failed_authentications_total(broker: BrokerContext) -> Value:
    """Failed authentications by SASL: ``credentials`` (wrong password, or no such user), ``token``, ``malformed``,
    ``identity`` (the client asks to be another user), ``mechanism`` (not enabled, or another one than before)."""
    return list(broker.meters.failed_authentications.items())


@_metric("counter", "listener")
def tls_handshake_failures_total(broker: BrokerContext) -> Value:
    """TLS handshakes that failed; the log says why."""
    return [((listener,), count) for listener, count in broker.meters.handshake_failures.items()]


@_metric("counter", "operation", "resource_type")
def authorization_refusals_total(broker: BrokerContext) -> Value:
    """Refusals by the authorizer, by the right that the client lacks. An answer that only leaves out what the client
    may not see is no refusal."""
    return [
        ((AclOperation(operation).name, ResourceType(resource_type).name), count)
        for (operation, resource_type), count in broker.meters.refusals.items()
    ]
