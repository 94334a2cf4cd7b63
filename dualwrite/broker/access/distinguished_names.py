"""The distinguished name in a certificate, as Java's X500Principal.getName() writes it (RFC 2253).

Principals and the rules that map them are written for that form, down to its escapes, so that a certificate has the
same principal here as in Apache Kafka. Python's ssl gives the name without the ASN.1 types on which the form depends.
"""

from collections.abc import Iterator

_KEYWORDS = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
"""The attributes that RFC 2253 names. Every other is written as its number, with its value in hexadecimal."""
_TEXTS = frozenset({0x0C, 0x13, 0x14, 0x16, 0x1B, 0x1E})
"""UTF8String, PrintableString, T61String, IA5String, GeneralString and BMPString."""
_ESCAPED = frozenset(',=+<>#;"\\')
_VERSION = 0xA0
_LONG_LENGTH, _CONTINUED = 0x80, 0x80
_BEFORE_SUBJECT = 4
"""Serial number, signature algorithm, issuer and validity precede the subject."""


class CertificateError(ValueError):
    """The bytes are no certificate."""


def subject_of(certificate: bytes) -> str:
    """The subject's name, the most specific part first: ``CN=orders,OU=shop,C=DE``.

    :param certificate: the certificate in DER form.
    :raises CertificateError: if it is malformed.
    """
    try:
        _, outer, _ = next(_elements(certificate))
        _, to_be_signed, _ = next(_elements(outer))
        fields = [field for field in _elements(to_be_signed) if field[0] != _VERSION]
        _, subject, _ = fields[_BEFORE_SUBJECT]
        return ",".join(reversed([_relative(name) for _, name, _ in _elements(subject)]))
    except (IndexError, ValueError, StopIteration) as error:
        raise CertificateError("the certificate is malformed") from error


def _elements(data: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """The elements in DER that ``data`` consists of: each one's tag, content, and whole encoding."""
    start = 0
    while start < len(data):
        tag, length, content = data[start], data[start + 1], start + 2
        if length >= _LONG_LENGTH:
            content += length - _LONG_LENGTH
            length = int.from_bytes(data[start + 2 : content], "big")
        end = content + length
        if end > len(data):
            raise IndexError("an element is longer than what holds it")
        yield tag, data[content:end], data[start:end]
        start = end


def _relative(name: bytes) -> str:
    """A relative distinguished name: its attributes, joined by plus signs."""
    return "+".join(_attribute(attribute) for _, attribute, _ in _elements(name))


def _attribute(attribute: bytes) -> str:
    (_, identifier, _), (tag, value, encoding) = list(_elements(attribute))[:2]
    number = _dotted(identifier)
    keyword = _KEYWORDS.get(number)
    if keyword is None or tag not in _TEXTS:
        return f"{keyword or number}=#{encoding.hex()}"
    return f"{keyword}={_escape(value.decode('utf-8', 'replace'))}"  # of every type, as in Java


def _dotted(identifier: bytes) -> str:
    """An object identifier as numbers with dots."""
    numbers, number = [], 0
    for byte in identifier:
        number = number << 7 | byte & ~_CONTINUED
        if not byte & _CONTINUED:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _escape(text: str) -> str:
    """``text`` with backslashes before the characters of RFC 2253, and before the spaces at its ends."""
    inner = text.strip(" ")
    leading = len(text) - len(text.lstrip(" "))
    trailing = len(text) - leading - len(inner)
    middle = "".join(_escaped(character) for character in inner)
    return "\\ " * leading + middle + "\\ " * trailing


def _escaped(character: str) -> str:
    if character in _ESCAPED:
        return f"\\{character}"
    return "\\00" if character == "\0" else character
