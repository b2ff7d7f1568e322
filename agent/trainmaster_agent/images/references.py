"""References of images, such as ``registry.example.com/team/train:1``. Pure.

The grammar is that of https://github.com/distribution/reference, as container runtimes have it.
"""

import re
from dataclasses import dataclass

DOCKER_HUB = "docker.io"
_DOCKER_HUB_NAMES = frozenset((DOCKER_HUB, "index.docker.io", "registry-1.docker.io"))
_DOCKER_HUB_API = "https://registry-1.docker.io"
_LIBRARY = "library"
_LATEST = "latest"
_MOST_NAME = 255
_HOST = re.compile(r"([A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9a-fA-F:]+\])(:[0-9]{1,5})?")
_PATH = re.compile(r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")


class BadReferenceError(ValueError):
    """The text is no reference of an image. The message is for users."""


@dataclass(frozen=True, slots=True)
class ImageReference:
    """An image. ``registry``: a host, with a port where it has one; ``version``: a tag, or a digest."""

    registry: str
    repository: str
    version: str

    def __str__(self) -> str:
        separator = "@" if DIGEST.fullmatch(self.version) else ":"
        return f"{self.registry}/{self.repository}{separator}{self.version}"


@dataclass(frozen=True, slots=True)
class RegistryPlace:
    """Where a repository is read. ``url``: scheme and host, without a path; ``host``: as credentials name it."""

    url: str
    host: str
    repository: str


def parse_reference(text: str) -> ImageReference:
    """Read a reference. Without a host it is of Docker Hub, without a tag of ``latest``. Raises BadReferenceError."""
    name, _, digest = text.partition("@")
    if digest and not DIGEST.fullmatch(digest):
        raise BadReferenceError(f"image {text!r} has a digest that is no SHA-256 or SHA-512")
    tag = _LATEST
    last = name.rpartition("/")[2]
    if ":" in last:
        name, _, tag = name.rpartition(":")
        if not _TAG.fullmatch(tag):
            raise BadReferenceError(f"image {text!r} has a tag that is none")
    first, slash, rest = name.partition("/")
    registry, repository = DOCKER_HUB, name
    if slash and ("." in first or ":" in first or first == "localhost" or first != first.lower()):
        registry, repository = normalized(first), rest
    if registry == DOCKER_HUB and "/" not in repository:
        repository = f"{_LIBRARY}/{repository}"
    if not _HOST.fullmatch(registry) or not _PATH.fullmatch(repository) or len(repository) > _MOST_NAME:
        raise BadReferenceError(f"{text!r} is no image, such as registry.example.com/team/train:1")
    return ImageReference(registry, repository, digest or tag)


def normalized(registry: str) -> str:
    """Return a registry by its one name: Docker Hub has several."""
    return DOCKER_HUB if registry in _DOCKER_HUB_NAMES else registry


def place_of(image: ImageReference, addresses: dict[str, str]) -> RegistryPlace:
    """Return where an image is read. ``addresses``: of registries that are reached otherwise than by https at their own host, by host.

    Such an address begins with ``https://`` or ``http://``; a path in it comes before the names of repositories.
    """
    address = addresses.get(image.registry)
    if address is None:
        url = _DOCKER_HUB_API if image.registry == DOCKER_HUB else f"https://{image.registry}"
        return RegistryPlace(url, image.registry, image.repository)
    scheme, _, rest = address.partition("://")
    host, _, path = rest.partition("/")
    prefix = path.strip("/")
    repository = f"{prefix}/{image.repository}" if prefix else image.repository
    return RegistryPlace(f"{scheme}://{host}", normalized(host), repository)
