"""The token of OAUTHBEARER: when it is asked for, and what a callback must not give."""

from typing import Any

import pytest

from dualwrite.client.config.settings import SaslSettings
from dualwrite.client.net.sasl import make_mechanism
from dualwrite.client.terms.oauth import TokenSource
from dualwrite.errors import ConfigurationError, KafkaUnavailableError


class Callback:
    """Gives what is queued for it; an exception is raised."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.configs: list[str] = []

    def __call__(self, config: str) -> Any:
        self.configs.append(config)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_a_token_is_kept_for_four_fifths_of_its_life() -> None:
    callback = Callback(("one", 200.0), ("two", 1000))
    source = TokenSource(callback, "the=config")
    assert [source.token(now).value for now in (100.0, 179.9, 180.0, 800.0)] == ["one", "one", "two", "two"]
    assert callback.configs == ["the=config", "the=config"]


def test_a_token_that_is_still_good_outlives_a_callback_that_fails() -> None:
    source = TokenSource(Callback(("one", 200.0), OSError("no route"), OSError("no route"), ("two", 900.0)))
    assert [source.token(now).value for now in (100.0, 190.0)] == ["one", "one"]
    with pytest.raises(KafkaUnavailableError, match=r"^oauth_cb: OSError: no route$"):
        source.token(200.0)
    assert source.token(200.0).value == "two", "it is asked again"


def test_a_thread_that_asks_during_the_renewal_of_another_gets_no_expired_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source = TokenSource(Callback(("one", 200.0), ("two", 900.0), ("three", 900.0), ("four", 900.0)))
    source.token(100.0)
    others: list[str] = []

    def ask_after(self: TokenSource, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        with monkeypatch.context() as other:
            other.delattr(TokenSource, "__setattr__")
            others.append(self.token(300.0).value)

    monkeypatch.setattr(TokenSource, "__setattr__", ask_after, raising=False)
    source.token(300.0)
    assert others
    assert "one" not in others


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "oauth_cb gave a value of type NoneType: allowed: (token, expiry"),
        ("token", "oauth_cb gave a value of type str: allowed: (token, expiry"),
        (("token",), "oauth_cb gave a value of type tuple: allowed: (token, expiry"),
        (("token", 9, "p", {}, 5), "oauth_cb gave a value of type tuple: allowed: (token, expiry"),
        ((b"token", 9), "oauth_cb gave a token with characters"),
        (("", 9), "oauth_cb gave a token with characters"),
        (("a b", 9), "oauth_cb gave a token with characters"),
        (("a\x01auth=Bearer b", 9), "oauth_cb gave a token with characters"),
        (("token", "9"), "oauth_cb gave a token with the expiry '9': allowed: seconds after 5"),
        (("token", 5), "oauth_cb gave a token with the expiry 5: allowed: seconds after 5"),
        (("token", 10**400), "oauth_cb gave a token with an expiry of more than 64 bits: allowed: seconds after 5"),
        (("token", -(10**5000)), "oauth_cb gave a token with an expiry of more than 64 bits: allowed: seconds after 5"),
        (("token", float("nan")), "oauth_cb gave a token with the expiry nan: allowed: seconds after 5"),
        (("token", 9, "p", [("a", "b")]), "oauth_cb gave extensions of type list: allowed: a dict"),
        (("token", 9, "p", {"auth": "x"}), "oauth_cb gave the extension 'auth': allowed: letters, and not 'auth'"),
        (("token", 9, "p", {"a=b": "x"}), "oauth_cb gave the extension 'a=b': allowed: letters, and not 'auth'"),
        (("token", 9, "p", {"a": "x\x01"}), "oauth_cb gave the extension 'a' a value that is no printable text"),
        (("token", 9, "p", {"a": 7}), "oauth_cb gave the extension 'a' a value that is no printable text"),
    ],
)
def test_an_invalid_token_is_refused(given: Any, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        TokenSource(Callback(given)).token(5.0)
    assert str(caught.value).startswith(message)
    assert "Bearer" not in str(caught.value), "a token is never shown"


@pytest.mark.parametrize(
    ("given", "first"),
    [
        (("a.b-c~d+e/f_g==", 4e9), b"n,,\x01auth=Bearer a.b-c~d+e/f_g==\x01\x01"),
        (("t", 4e9, "principal"), b"n,,\x01auth=Bearer t\x01\x01"),
        (("t", 4e9, "", {"a": "b", "c": "d e"}), b"n,,\x01auth=Bearer t\x01a=b\x01c=d e\x01\x01"),
    ],
)
def test_the_first_message_is_that_of_rfc_7628(given: Any, first: bytes) -> None:
    mechanism = make_mechanism(SaslSettings("OAUTHBEARER", tokens=TokenSource(Callback(given))))
    assert mechanism.name == "OAUTHBEARER"
    assert mechanism.next_message() == first
    assert not mechanism.is_done
    mechanism.receive(b"")
    assert mechanism.is_done


def test_a_broker_that_explains_its_refusal_is_answered_once_more() -> None:
    mechanism = make_mechanism(SaslSettings("OAUTHBEARER", tokens=TokenSource(Callback(("t", 4e9)))))
    mechanism.next_message()
    mechanism.receive(b'{"status":"invalid_token"}')
    assert not mechanism.is_done
    assert mechanism.next_message() == b"\x01"


def test_connections_share_a_token() -> None:
    callback = Callback(("t", 4e9))
    settings = SaslSettings("OAUTHBEARER", tokens=TokenSource(callback))
    assert {make_mechanism(settings).next_message() for _ in range(3)} == {b"n,,\x01auth=Bearer t\x01\x01"}
    assert len(callback.configs) == 1
