"""The pages that a browser shows while somebody signs in. Pure: it knows nothing of requests."""

from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from html import escape
from urllib.parse import urlencode

_STYLE = (
    "body{font:1.1rem/1.6 system-ui,sans-serif;max-width:42rem;margin:12vh auto;padding:0 1.5rem}"
    "h1{font-size:1.5rem}a{overflow-wrap:anywhere}"
)
_POLICY = (
    f"default-src 'none'; style-src 'sha256-{b64encode(sha256(_STYLE.encode()).digest()).decode()}'; base-uri 'none';"
    " form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark">
<title>{heading}</title>
<style>{style}</style>
</head>
<body>
<main>
<h1>{heading}</h1>
{body}
</main>
</body>
</html>
"""


def sign_in_address(return_to: str, issuer: str = "") -> str:
    """Return the address at which a sign-in begins."""
    query = {"return": return_to} | ({"issuer": issuer} if issuer else {})
    return f"/v1/sign-in/browser?{urlencode(query)}"


def choice_page(issuers: Sequence[tuple[str, str]], return_to: str) -> bytes:
    """Return a page with a link for each issuer, of which the names and addresses are given."""
    links = "".join(
        f'<li><a href="{escape(sign_in_address(return_to, name))}">{escape(name)}</a> ({escape(url)})</li>\n'
        for name, url in issuers
    )
    return _page("Sign in", f"<p>Whose account do you have?</p>\n<ul>\n{links}</ul>")


def refusal_page(detail: str, return_to: str) -> bytes:
    """Return a page that says why nobody was signed in."""
    again = f'<p><a href="{escape(sign_in_address(return_to))}">Sign in again</a></p>'
    return _page("You are not signed in", f"<p>{escape(detail[:1].upper() + detail[1:])}.</p>\n{again}")


def _page(heading: str, body: str) -> bytes:
    return _PAGE.format(heading=escape(heading), style=_STYLE, body=body).encode()
