"""Files of the dashboard as they were built, and the addresses of its pages. It knows nothing of requests."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ASSETS: Final = Path(__file__).parent / "assets"
"""The folder that ``scripts/build-web`` writes; git does not have it, wheels do."""
INDEX: Final = "index.html"
STATIC: Final = "static"
"""The folder of files whose names change with their content."""
PAGES: Final = (
    "/jobs",
    "/queues",
    "/clusters",
    "/submit",
    "/sessions",
    "/policies",
    "/usage",
    "/audit",
    "/simulations",
    "/workflows",
    "/schedules",
    "/people",
    "/keys",
    "/sign-in",
    "/help",
)
"""Addresses of pages beside ``/``, which the dashboard's program shows. Those of ``WITH_OBJECTS`` have more below them."""
WITH_OBJECTS: Final = frozenset(
    {"/jobs", "/queues", "/clusters", "/policies", "/simulations", "/workflows", "/schedules"}
)
HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; connect-src 'self';"
        " manifest-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": (
        "camera=(), display-capture=(), geolocation=(), microphone=(), payment=(), usb=(), serial=(), hid=(), midi=(),"
        " publickey-credentials-get=(), screen-wake-lock=()"
    ),
}
_OTHER: Final = "application/octet-stream"
_MEDIA_TYPES: Final[Mapping[str, str]] = {
    ".css": "text/css",
    ".html": "text/html",
    ".ico": "image/x-icon",
    ".js": "text/javascript",
    ".json": "application/json",
    ".map": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """A file. ``compressed``: the same by gzip; empty where it was built without."""

    content: bytes
    compressed: bytes
    media_type: str


def addresses() -> tuple[str, ...]:
    """Return the addresses of all pages, as paths of routes."""
    return ("/", *PAGES, *(f"{page}/{{below:path}}" for page in PAGES if page in WITH_OBJECTS))


def built_at(folder: Path) -> int:
    """Return when the dashboard was built, in nanoseconds of the file system; 0 where it is not."""
    try:
        return (folder / INDEX).stat().st_mtime_ns
    except OSError:
        return 0


def read_assets(folder: Path) -> dict[str, Asset]:
    """Return the files by their path in the folder. Nothing else is ever served: no path of a call names a file of this machine."""
    found = {}
    for path in sorted([folder / INDEX, *(folder / STATIC).rglob("*")]):
        if path.suffix == ".gz" or path.is_symlink() or not path.is_file():
            continue
        short = path.with_name(f"{path.name}.gz")
        compressed = short.read_bytes() if short.is_file() else b""
        media_type = _MEDIA_TYPES.get(path.suffix, _OTHER)
        found[path.relative_to(folder).as_posix()] = Asset(path.read_bytes(), compressed, media_type)
    return found
