"""The page that a browser shows where a port of a session cannot be opened. Pure: it knows nothing of requests."""

from html import escape

from trainmaster.protocol.sessions import NamedHost

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<meta name="color-scheme" content="light dark">
<title>{job}: {title}</title>
<style>
body {{ font: 1.1rem/1.6 system-ui, sans-serif; max-width: 42rem; margin: 12vh auto; padding: 0 1.5rem; }}
h1 {{ font-size: 1.5rem; overflow-wrap: anywhere; }}
code {{ display: block; padding: .6rem 1rem; border-radius: .4rem; background: rgb(128 128 128 / .18); overflow-wrap: anywhere; }}
</style>
</head>
<body>
<h1>{heading}</h1>
<p>{detail}</p>
{help}</body>
</html>
"""
_HELP = """<p>Open it with this command, which prints a link for one browser:</p>
<p><code>{command}</code></p>
"""


def refusal_page(host: NamedHost, detail: str, command: str) -> bytes:
    """Return a page of HTML. ``command``: what makes a link; empty where that does not help."""
    title = f"port {host.port}" if host.port.isdecimal() else host.port
    page = _PAGE.format(
        job=escape(host.job),
        title=escape(title),
        heading=escape(f"{title} of {host.job} cannot be opened"),
        detail=escape(f"{detail if detail.startswith(host.job) else detail[:1].upper() + detail[1:]}."),
        help=_HELP.format(command=escape(command)) if command else "",
    )
    return page.encode()
