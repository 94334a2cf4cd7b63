"""Distinguished names, as Java's X500Principal.getName() wrote the same certificates (OpenJDK 17)."""

from contextlib import suppress

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID as Oid
from hypothesis import given
from hypothesis import strategies as st

from dualwrite.broker.access.distinguished_names import CertificateError, subject_of
from tests.support.broker.name_attributes import StringType as Type
from tests.support.client.certificates import Authority

AUTHORITY = Authority()
KEY = AUTHORITY.issue().private

Attribute = x509.NameAttribute
LONG_NUMBER = x509.ObjectIdentifier("1.2.840.99999999.4294967296.1")

WRITTEN: list[tuple[str, list[list[x509.NameAttribute]]]] = [
    (
        "CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US",
        [
            [Attribute(Oid.COUNTRY_NAME, "US")],
            [Attribute(Oid.STATE_OR_PROVINCE_NAME, "MD")],
            [Attribute(Oid.LOCALITY_NAME, "Fulton")],
            [Attribute(Oid.ORGANIZATION_NAME, "mycp")],
            [Attribute(Oid.ORGANIZATIONAL_UNIT_NAME, "SME")],
            [Attribute(Oid.COMMON_NAME, "Duke")],
        ],
    ),
    (
        "STREET=s 1,UID=u1,DC=example,DC=com",
        [
            [Attribute(Oid.DOMAIN_COMPONENT, "com")],
            [Attribute(Oid.DOMAIN_COMPONENT, "example")],
            [Attribute(Oid.USER_ID, "u1")],
            [Attribute(Oid.STREET_ADDRESS, "s 1")],
        ],
    ),
    ('CN=a\\,b\\+c\\"d\\\\e\\<f\\>g\\;h\\=i\\#j', [[Attribute(Oid.COMMON_NAME, 'a,b+c"d\\e<f>g;h=i#j')]]),
    ("CN=\\ \\ two  inside\\ \\ ", [[Attribute(Oid.COMMON_NAME, "  two  inside  ")]]),
    ("CN=\\ ", [[Attribute(Oid.COMMON_NAME, " ")]]),
    ("CN=\\#x", [[Attribute(Oid.COMMON_NAME, "#x")]]),
    ("CN=Zoë 測試 😀", [[Attribute(Oid.COMMON_NAME, "Zoë 測試 😀")]]),
    ("CN=a\\00b\nc\x7f", [[Attribute(Oid.COMMON_NAME, "a\x00b\nc\x7f")]]),
    ("CN=a@b*c_d!e'(f)", [[Attribute(Oid.COMMON_NAME, "a@b*c_d!e'(f)")]]),
    (
        "1.2.840.113549.1.9.1=#16056140622e63,CN=x",
        [[Attribute(Oid.COMMON_NAME, "x")], [Attribute(Oid.EMAIL_ADDRESS, "a@b.c")]],
    ),
    (
        "2.5.4.46=#130171,2.5.4.4=#0c0153,2.5.4.5=#13023132,2.5.4.12=#0c024472",
        [
            [Attribute(Oid.TITLE, "Dr")],
            [Attribute(Oid.SERIAL_NUMBER, "12")],
            [Attribute(Oid.SURNAME, "S")],
            [Attribute(Oid.DN_QUALIFIER, "q")],
        ],
    ),
    (
        "O=o,CN=b+OU=a+UID=z",
        [
            [
                Attribute(Oid.COMMON_NAME, "b"),
                Attribute(Oid.ORGANIZATIONAL_UNIT_NAME, "a"),
                Attribute(Oid.USER_ID, "z"),
            ],
            [Attribute(Oid.ORGANIZATION_NAME, "o")],
        ],
    ),
    ("1.2.840.99999999.4294967296.1=#0c0178", [[Attribute(LONG_NUMBER, "x", _type=Type.UTF8String)]]),
    ("CN=abc", [[Attribute(Oid.COMMON_NAME, "abc", _type=Type.T61String)]]),
    ("CN=abc", [[Attribute(Oid.COMMON_NAME, "abc", _type=Type.IA5String)]]),
    ("CN=a.b", [[Attribute(Oid.COMMON_NAME, "a.b", _type=Type.PrintableString)]]),
    ("DC=com", [[Attribute(Oid.DOMAIN_COMPONENT, "com", _type=Type.UTF8String)]]),
    # Java takes the bytes of these types as they are, or writes them as numbers
    ("CN=\\00Z\\00o\\00\ufffd", [[Attribute(Oid.COMMON_NAME, "Zoë", _type=Type.BMPString)]]),
    (
        "CN=#1c0c0000005a0000006f000000eb",
        [[Attribute(Oid.COMMON_NAME, "Zoë", _type=Type.UniversalString)]],
    ),
    ("", []),
]


@pytest.mark.parametrize(("written", "attributes"), WRITTEN, ids=[repr(written)[:40] for written, _ in WRITTEN])
def test_a_subject_is_written_as_java_writes_it(written: str, attributes: list[list[x509.NameAttribute]]) -> None:
    name = x509.Name([x509.RelativeDistinguishedName(together) for together in attributes])
    assert subject_of(AUTHORITY.issue(name, key=KEY).der()) == written


@given(st.text(st.characters(codec="utf-8", exclude_categories=["C"]), min_size=1, max_size=16))
def test_two_names_are_never_written_alike(text: str) -> None:
    """An escape that was forgotten would let one principal pose as another."""
    written = subject_of(AUTHORITY.issue(text, key=KEY).der())
    assert written.startswith("CN=")
    unescaped, rest = "", written.removeprefix("CN=")
    while rest:
        skipped = rest.startswith("\\")
        assert skipped or rest[0] not in ',+"\\<>;=#'
        unescaped, rest = unescaped + rest[skipped], rest[skipped + 1 :]
    assert unescaped == text


DER = AUTHORITY.issue("x" * 64, [f"h{number}.example" for number in range(20)], key=KEY).der()


@given(st.integers(0, len(DER) - 1), st.integers(0, 255), st.integers(0, len(DER)))
def test_damaged_bytes_are_a_name_or_refused(position: int, byte: int, length: int) -> None:
    damaged = bytearray(DER)
    damaged[position] = byte
    for data in (bytes(damaged), DER[:length]):
        try:
            assert isinstance(subject_of(data), str)
        except CertificateError as error:
            assert str(error) == "the certificate is malformed"  # noqa: PT017 - or a name


def test_java_takes_the_bytes_of_a_t61string_for_utf_8() -> None:
    """As it does with a BMPString, though X500Principal.toString() decodes both by their types (OpenJDK 17)."""
    name = x509.Name([x509.NameAttribute(Oid.COMMON_NAME, "Zo\u00eb", _type=Type.T61String)])
    der = AUTHORITY.issue(name, key=KEY).der()
    assert subject_of(der) == "CN=Zo\u00eb"  # cryptography writes UTF-8
    assert subject_of(der.replace(b"Zo\xc3\xab", b"Zo\xebx")) == "CN=Zo\ufffdx"


def test_a_byte_that_became_zero_leaves_a_name_or_a_refusal() -> None:
    for position in range(len(DER)):
        damaged = bytearray(DER)
        damaged[position] = 0
        with suppress(CertificateError):
            assert isinstance(subject_of(bytes(damaged)), str)
