"""Checks the claims and the signature of an OAuth access token (RFC 7519), by the library PyJWT.

Sources: KIP-768; Kafka's ValidatorAccessTokenValidator (which claims must be there) and, for unsecured tokens,
OAuthBearerUnsecuredValidatorCallbackHandler (KIP-255).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jwt

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Signatures by a key pair. With a shared key (HS256), a server that can check tokens could also make them."""
_NONE = "none"


class InvalidTokenError(ValueError):
    """The token is not accepted. The message has the reason, for the broker's log, and no part of the signature."""


@dataclass(frozen=True, slots=True)
class TokenRules:
    """Which tokens are accepted.

    :param audiences: sasl.oauthbearer.expected.audience; empty for any.
    :param issuer: sasl.oauthbearer.expected.issuer; None for any.
    :param user_claim: sasl.oauthbearer.sub.claim.name.
    :param scope_claim: sasl.oauthbearer.scope.claim.name.
    :param clock_skew_ms: sasl.oauthbearer.clock.skew.seconds, in milliseconds.
    :param allows_unsecured: whether a token without a signature is accepted.
    """

    audiences: tuple[str, ...] = ()
    issuer: str | None = None
    user_claim: str = "sub"
    scope_claim: str = "scope"
    clock_skew_ms: int = 30_000
    allows_unsecured: bool = False


class TokenHeader(NamedTuple):
    """The parts of a token's header that say how to check it. Not trustworthy."""

    algorithm: str
    key_id: str | None

    @property
    def is_unsecured(self) -> bool:
        """True if the token says that it has no signature."""
        return self.algorithm.lower() == _NONE


class ValidToken(NamedTuple):
    """A token that was accepted: its user, and its end in milliseconds since the epoch."""

    user: str
    expires_at_ms: int


def read_header(token: str) -> TokenHeader:
    """The header of ``token``.

    :raises InvalidTokenError: if it has none.
    """
    try:
        header = jwt.get_unverified_header(token)
    except jwt.PyJWTError:
        raise InvalidTokenError("it is not a signed token (JWS)") from None
    algorithm, key_id = header.get("alg"), header.get("kid")
    if not isinstance(algorithm, str) or not isinstance(key_id, str | None):
        raise InvalidTokenError("its header has no algorithm, or an invalid key id")
    return TokenHeader(algorithm, key_id)


def check_token(token: str, key: Mapping[str, Any] | None, rules: TokenRules, wall_ms: int) -> ValidToken:
    """Accept ``token``, or say why not.

    :param key: the public key that the header names, as in a JWK Set (RFC 7517); None if there is none.
    :param wall_ms: the time, in milliseconds since the epoch.
    :raises InvalidTokenError: if the token is not accepted.
    """
    header = read_header(token)
    if header.is_unsecured:
        if not rules.allows_unsecured:
            raise InvalidTokenError("it is unsecured (alg none), which sasl.oauthbearer.unsecured.tokens.allow permits")
        if not token.endswith("."):
            raise InvalidTokenError("it is unsecured (alg none) and has a signature")
    elif header.algorithm not in ALGORITHMS:
        raise InvalidTokenError(f"its algorithm {header.algorithm[:20]!r} is not one of {', '.join(ALGORITHMS)}")
    if header.is_unsecured:
        public_key, required = None, ["exp"]  # as in KIP-255
    else:
        public_key, required = _public_key(key, header.algorithm), ["exp", "iat"]
    claims = _verified_claims(token, public_key, rules)
    expires_at_ms = _check_times(claims, required, rules, wall_ms)
    scope = claims.get(rules.scope_claim)
    if scope is not None and not isinstance(scope, str | list):
        raise InvalidTokenError(f"its claim {rules.scope_claim} is neither a text nor a list")
    user = claims.get(rules.user_claim)
    if not isinstance(user, str) or not user.strip():
        raise InvalidTokenError(f"its claim {rules.user_claim} names no user")
    return ValidToken(user.strip(), expires_at_ms)


def _public_key(key: Mapping[str, Any] | None, algorithm: str) -> jwt.PyJWK:
    """``key`` for signatures of ``algorithm``, which must be the key's own if it names one."""
    if key is None:
        raise InvalidTokenError("there is no key for the token's key id in sasl.oauthbearer.jwks.endpoint.url")
    if key.get("alg", algorithm) != algorithm or key.get("use", "sig") != "sig":
        raise InvalidTokenError(f"the token's key is not for signatures of {algorithm}")
    try:
        return jwt.PyJWK(dict(key), algorithm)
    except (jwt.PyJWTError, TypeError, ValueError):
        raise InvalidTokenError(f"the token's key does not fit {algorithm}") from None


def _verified_claims(token: str, key: jwt.PyJWK | None, rules: TokenRules) -> Mapping[str, Any]:
    """The claims, after the checks of the signature, the issuer and the audience."""
    options: Any = {
        "verify_signature": key is not None,
        "verify_exp": False,  # the library reads the system's clock; _check_times has the time as an argument
        "verify_nbf": False,
        "verify_iat": False,
        "verify_sub": False,
        "verify_jti": False,
        "verify_aud": bool(rules.audiences),
        "verify_iss": rules.issuer is not None,
    }
    try:
        return jwt.decode(
            token,
            key if key is not None else "",
            algorithms=list(ALGORITHMS),
            options=options,
            audience=list(rules.audiences) or None,
            issuer=rules.issuer,
        )
    except jwt.InvalidAudienceError:
        raise InvalidTokenError("its audience is not sasl.oauthbearer.expected.audience") from None
    except jwt.MissingRequiredClaimError as error:
        raise InvalidTokenError(f"it lacks the claim {error.claim}") from None
    except jwt.InvalidIssuerError:
        raise InvalidTokenError("its issuer is not sasl.oauthbearer.expected.issuer") from None
    except jwt.InvalidSignatureError:
        raise InvalidTokenError("its signature is wrong") from None
    except (jwt.PyJWTError, TypeError, ValueError) as error:
        raise InvalidTokenError(f"it cannot be read: {type(error).__name__}") from None


def _check_times(claims: Mapping[str, Any], required: Sequence[str], rules: TokenRules, wall_ms: int) -> int:
    """The end of the token, if it is valid now, in milliseconds since the epoch."""
    times = {name: _time(claims, name) for name in ("exp", "iat", "nbf")}
    for name in required:
        if times[name] is None:
            raise InvalidTokenError(f"it lacks the claim {name}")
    expires_ms = times["exp"] or 0
    if expires_ms + rules.clock_skew_ms <= wall_ms:
        raise InvalidTokenError("it has expired")
    if max(times["iat"] or 0, times["nbf"] or 0) - rules.clock_skew_ms > wall_ms:
        raise InvalidTokenError("it is not valid yet: its iat or nbf lies in the future")
    return expires_ms


def _time(claims: Mapping[str, Any], name: str) -> int | None:
    """The time in the claim ``name``, from seconds to milliseconds."""
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 2**50:
        raise InvalidTokenError(f"its claim {name} is not a time")
    return int(value * 1000)
