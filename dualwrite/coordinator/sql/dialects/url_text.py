"""A database's URL as an error message or a log may show it."""

from sqlalchemy import URL


def passwords_in_query(url: URL) -> list[str]:
    """The parameters of ``url`` that hold a password, such as ``sslpassword``, or libpq's ``oauth_client_secret``."""
    return [name for name in url.query if "pass" in name.lower() or "secret" in name.lower()]


def url_text(url: URL) -> str:
    """``url`` with *** in place of its password, and without the passwords in its query, which SQLAlchemy shows."""
    return url.difference_update_query(passwords_in_query(url)).render_as_string(hide_password=True)
