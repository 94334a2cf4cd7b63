"""AlterUserScramCredentials (51), v0 (KIP-554).

Sets and deletes credentials; the client sends a salted password, and the broker stores only what follows from it. All
allowed changes of a request take effect together, and are durable before the answer. Existing connections of a user
remain. Errors of a user: DUPLICATE_RESOURCE if the request names it twice, UNSUPPORTED_SASL_MECHANISM,
UNACCEPTABLE_CREDENTIAL, RESOURCE_NOT_FOUND.
"""

from dualwrite.broker.access.acls import AclOperation
from dualwrite.broker.access.needs import on_cluster
from dualwrite.broker.api.context import BrokerContext
from dualwrite.broker.core.credential_changes import DeleteCredential, SetCredential
from dualwrite.wire.apis import AlterUserScramCredentialsResponse, ApiKey, Message

KEY = ApiKey.ALTER_USER_SCRAM_CREDENTIALS
VERSIONS = range(1)
_ALTER = on_cluster(AclOperation.ALTER)
NEEDS = (_ALTER,)

_Result = AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult


async def handle(request: Message, version: int, broker: BrokerContext) -> Message:
    """Carry out the changes of the request."""
    if not broker.may(_ALTER):
        return _refused(request)
    deletions = [DeleteCredential(each.name, each.mechanism) for each in request.deletions]
    upsertions = [
        SetCredential(each.name, each.mechanism, each.iterations, bytes(each.salt), bytes(each.salted_password))
        for each in request.upsertions
    ]
    results = broker.cluster.security.change_credentials([*deletions, *upsertions])
    await broker.flusher.barrier()
    return AlterUserScramCredentialsResponse(
        throttle_time_ms=0,
        results=[_Result(user=each.user, error_code=each.error, error_message=each.message) for each in results],
    )


def _refused(request: Message) -> Message:
    users = dict.fromkeys(each.name for each in (*request.deletions, *request.upsertions))
    return AlterUserScramCredentialsResponse(
        throttle_time_ms=0,
        results=[_Result(user=user, error_code=_ALTER.error, error_message=_ALTER.message) for user in users],
    )
