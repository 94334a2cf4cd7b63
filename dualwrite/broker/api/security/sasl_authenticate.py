"""SaslAuthenticate (36), v0-v2 (KIP-152; the lifetime of the session by KIP-368).

On a listener with SASL the connection itself answers it, while the client authenticates. This handler answers all
others with ILLEGAL_SASL_STATE, as Kafka does.
"""

from dualwrite.broker.access.needs import Need
from dualwrite.broker.api.context import BrokerContext
from dualwrite.wire.apis import ApiKey, Message, SaslAuthenticateResponse
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.SASL_AUTHENTICATE
VERSIONS = range(3)
NEEDS: tuple[Need, ...] = ()


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Refuse: there is nothing to authenticate."""
    return SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE,
        error_message="SaslAuthenticate request received after successful authentication",
        auth_bytes=b"",
        session_lifetime_ms=0,
    )
