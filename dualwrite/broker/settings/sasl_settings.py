"""The settings of SASL, which each listener may have for itself.

Sources: Kafka's BrokerSecurityConfigs and SaslConfigs (types, ranges and defaults), KIP-368, KIP-768. Two differ: Kafka
enables GSSAPI by default, which is not here, and has another class instead of the switch for unsecured tokens.
"""

from collections.abc import Mapping
from urllib.parse import urlsplit

from dualwrite.broker.settings.setting import ANYTHING, Allowed, ConfigType, Setting, at_least, some_of

PLAIN, OAUTHBEARER = "PLAIN", "OAUTHBEARER"
MECHANISMS = ("SCRAM-SHA-512", "SCRAM-SHA-256", PLAIN, OAUTHBEARER)
"""The mechanisms that can be enabled."""

ENABLED_MECHANISMS = "sasl.enabled.mechanisms"
MAX_RECEIVE_SIZE = "sasl.server.max.receive.size"
MAX_REAUTH_MS = "connections.max.reauth.ms"
FAILURE_DELAY_MS = "connection.failed.authentication.delay.ms"
JWKS_URL = "sasl.oauthbearer.jwks.endpoint.url"
JWKS_REFRESH_MS = "sasl.oauthbearer.jwks.endpoint.refresh.ms"
EXPECTED_AUDIENCE = "sasl.oauthbearer.expected.audience"
EXPECTED_ISSUER = "sasl.oauthbearer.expected.issuer"
USER_CLAIM = "sasl.oauthbearer.sub.claim.name"
SCOPE_CLAIM = "sasl.oauthbearer.scope.claim.name"
CLOCK_SKEW_SECONDS = "sasl.oauthbearer.clock.skew.seconds"
ALLOW_UNSECURED = "sasl.oauthbearer.unsecured.tokens.allow"

BOOLEAN, STRING, INT = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT
LONG, LIST = ConfigType.LONG, ConfigType.LIST

_URL = Allowed("expected a URL that begins with file:, https: or http:", lambda url: _is_url(url))
_NAME = Allowed("must not be empty", bool)


def _is_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return (parts.scheme in ("http", "https") and bool(parts.netloc)) or (parts.scheme == "file" and bool(parts.path))


def _setting(kind: ConfigType, default: str | None, rules: tuple[Allowed, ...], documentation: str) -> Setting:
    return Setting(kind, default, rules, documentation)


SASL_SETTINGS: Mapping[str, Setting] = {
    MAX_REAUTH_MS: _setting(
        LONG, "0", (at_least(0),),
        "How long a session lasts until the client must authenticate again (KIP-368); 0: as long as the connection."),
    ENABLED_MECHANISMS: _setting(
        LIST, "SCRAM-SHA-512,SCRAM-SHA-256", (some_of(*MECHANISMS), Allowed("must name one at least", bool)),
        "How clients may authenticate on listeners with SASL."),
    CLOCK_SKEW_SECONDS: _setting(
        INT, "30", (at_least(0),),
        "By how much the clocks of the broker and of the tokens' issuer may differ."),
    EXPECTED_AUDIENCE: _setting(
        LIST, None, (ANYTHING,),
        "The audiences of which an access token must have one. Not set: any."),
    EXPECTED_ISSUER: _setting(
        STRING, None, (_NAME,),
        "The issuer that an access token must have. Not set: any."),
    JWKS_REFRESH_MS: _setting(
        LONG, "3600000", (at_least(1000),),
        "How often the issuer's keys are read again. A token with an unknown key id makes the broker read them, too."),
    JWKS_URL: _setting(
        STRING, None, (_URL,),
        "Where the public keys of the tokens' issuer are (JWK Set)."),
    SCOPE_CLAIM: _setting(
        STRING, "scope", (_NAME,),
        "The claim with the scope of an access token. It is only checked for its form."),
    USER_CLAIM: _setting(
        STRING, "sub", (_NAME,),
        "The claim with the name of the user."),
    ALLOW_UNSECURED: _setting(
        BOOLEAN, "false", (),
        "Whether access tokens without a signature are accepted (KIP-255), so that every client may be every user. "
        "For tests only. Not a setting of Kafka."),
    MAX_RECEIVE_SIZE: _setting(
        INT, "524288", (at_least(1024),),
        "The largest request before the client has authenticated."),
}  # fmt: skip
"""By their names without a listener's prefix."""
