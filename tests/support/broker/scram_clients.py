"""Users with credentials, and the client's side of a SCRAM exchange, for tests."""

from scramp import ScramClient

from dualwrite.broker.access.scram import ScramExchange
from dualwrite.broker.access.scram_credentials import ScramCredential, ScramHash, UserCredentials
from dualwrite.broker.access.verdicts import Challenge, Verdict

SALT = bytes(range(16))


def users(**passwords: str) -> UserCredentials:
    """Users with a credential for each mechanism."""
    credentials = UserCredentials()
    credentials.decoy_secret = b"secret of the decoys"
    for user, password in passwords.items():
        for scram in ScramHash:
            credentials.put(user, ScramCredential.of_password(scram, 4096, SALT, password.encode()))
    return credentials


def exchange(server: ScramExchange, user: str, password: str, scram: ScramHash) -> Verdict:
    """The last verdict of a whole exchange. A granted client also checks the server's proof."""
    client = ScramClient([scram.mechanism], user, password)
    challenge = server.respond(client.get_client_first().encode())
    if not isinstance(challenge, Challenge):
        return challenge
    client.set_server_first(challenge.message.decode())
    verdict = server.respond(client.get_client_final().encode())
    if not isinstance(verdict, Challenge) and hasattr(verdict, "message") and isinstance(verdict.message, bytes):
        client.set_server_final(verdict.message.decode())
    return verdict
