"""The ASN.1 types of the strings in a certificate's names.

cryptography takes such a type for an attribute, and has no public name for it. A certificate authority may use any.
"""

from cryptography.x509.name import _ASN1Type

StringType = _ASN1Type
"""UTF8String, PrintableString, BMPString, …"""
