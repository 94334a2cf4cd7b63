"""DescribeUserScramCredentials (50), v0 (KIP-554).

Answers the mechanisms and iterations of users, and no secret. Errors: RESOURCE_NOT_FOUND for an unknown user,
DUPLICATE_RESOURCE for a user that the request names twice.
"""

from dualwrite.broker.access.acls import AclOperation
from dualwrite.broker.access.needs import on_cluster
from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.api.turns import in_turns
from dualwrite.broker.core.credential_changes import DescribedUser, describe_users
from dualwrite.wire.apis import ApiKey, DescribeUserScramCredentialsResponse, Message
from dualwrite.wire.error_codes import ErrorCode

KEY = ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS
VERSIONS = range(1)
_DESCRIBE = on_cluster(AclOperation.DESCRIBE)
NEEDS = (_DESCRIBE,)


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Describe the users of the request, or all users."""
    if not broker.may(_DESCRIBE):
        return DescribeUserScramCredentialsResponse(
            throttle_time_ms=0, error_code=_DESCRIBE.error, error_message=_DESCRIBE.message, results=[]
        )
    names = [user.name for user in request.users or ()]
    described = list(describe_users(names, broker.cluster.security.credentials))
    await broker.flusher.barrier()
    return DescribeUserScramCredentialsResponse(
        throttle_time_ms=0,
        error_code=ErrorCode.NONE,
        error_message=None,
        results=[_result(user) async for user in in_turns(described)],
    )


def _result(user: DescribedUser) -> Message:
    result = DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult
    return result(
        user=user.user,
        error_code=user.error,
        error_message=user.message,
        credential_infos=[
            result.CredentialInfo(mechanism=int(scram), iterations=iterations) for scram, iterations in user.credentials
        ],
    )
