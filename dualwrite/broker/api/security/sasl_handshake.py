"""SaslHandshake (17), v0-v1 (KIP-43, KIP-152).

On a listener with SASL the connection itself answers it, while the client authenticates. This handler answers all
others: on a listener without SASL, and after the authentication unless a session may be renewed (KIP-368). The answer
is ILLEGAL_SASL_STATE, as in Kafka.
"""

from dualwrite.broker.access.needs import Need
from dualwrite.broker.api.context import BrokerContext
from dualwrite.wire.apis import ApiKey, Message, SaslHandshakeResponse
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.SASL_HANDSHAKE
VERSIONS = range(2)
NEEDS: tuple[Need, ...] = ()


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Refuse: there is nothing to authenticate."""
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, mechanisms=[])
