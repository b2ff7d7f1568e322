"""A client of registries that reads the entry point of an image, by the OCI distribution API.

https://github.com/opencontainers/distribution-spec/blob/main/spec.md, tokens:
https://distribution.github.io/distribution/spec/auth/token/. Docker's and OCI's types of manifests have the same fields.

What a registry answers is not trusted: it is bounded in size and time, and all that a digest names is verified.
"""

import hashlib
import http.client
import json
import re
import socket
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO, Any, TypeVar

from trainmaster_agent.images.credentials import RegistryCredentials
from trainmaster_agent.images.references import DIGEST, ImageReference, RegistryPlace

MOST_MANIFEST = 4 * 1024 * 1024
"""Bytes of a manifest, the most that the specification asks of registries."""
MOST_CONFIG = 8 * 1024 * 1024
"""Bytes of the configuration of an image, which has the history of its layers."""
_MOST_TOKEN = 1024 * 1024
_MOST_NESTED = 3
"""Indexes in each other."""
_CHUNK = 65_536
_ANSWER_SECONDS = 20.0
PATIENCE_SECONDS = 100.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 15.0
_MANIFESTS = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
_UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND = 401, 403, 404
_PASSING = frozenset((408, 425, 429, 500, 502, 503, 504))
_PARAMETER = re.compile(r'([A-Za-z_]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s",]+))')
_SCHEME = re.compile(r"(?:^|,)\s*(Bearer|Basic)(?=\s|,|$)", re.IGNORECASE)
_MACHINES = {
    "x86_64": "amd64",
    "aarch64": "arm64",
    "armv8l": "arm64",
    "armv7l": "arm",
    "armv6l": "arm",
    "i386": "386",
    "i686": "386",
}
"""Architectures by the machine's name, where the name of the image's is another one: that of Go."""

_T = TypeVar("_T")


class ImageRefusedError(Exception):
    """The entry point cannot be read, and trying again does not help; says why."""


class RegistryAwayError(Exception):
    """A registry that may answer later; says why it did not."""


@dataclass(frozen=True, slots=True)
class EntryPoint:
    """The command of an image: ``entrypoint`` and then ``cmd``, in whose place arguments come where there are any."""

    entrypoint: tuple[str, ...]
    cmd: tuple[str, ...]


def architecture_of(machine: str) -> str:
    """Return the architecture of images for a machine, by what ``uname -m`` says."""
    return _MACHINES.get(machine, machine)


class _SafeRedirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, as of blobs to a file store. Credentials go to the same origin only, and none leads from https to http."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        schemes = ("https:",) if req.type == "https" else ("https:", "http:")
        if not newurl.lower().startswith(schemes):
            raise ImageRefusedError(f"{req.host} leads to {newurl.partition(':')[0]}, which is not https")
        found = super().redirect_request(req, fp, code, msg, headers, newurl)
        authorization = req.unredirected_hdrs.get("Authorization")
        if found is not None and authorization and (found.type, found.host) == (req.type, req.host):
            found.add_unredirected_header("Authorization", authorization)
        return found


@dataclass(frozen=True, slots=True)
class _Answer:
    body: bytes
    digest: str = ""
    """The SHA-256 of the body, as digests are written."""


@dataclass(slots=True)
class RegistryClient:
    """Reads images of one repository. ``certificates``: a file with those that are trusted beside the usual ones."""

    place: RegistryPlace
    credentials: RegistryCredentials | None = None
    certificates: str | None = None
    patience: float = PATIENCE_SECONDS
    """Seconds for which what may pass is tried again, over all calls."""
    pause: Callable[[float], None] = time.sleep
    _spent: float = field(default=0.0, init=False)
    """Seconds of calls that had to be tried again, and of the pauses between them."""
    _authorization: str = field(default="", init=False)
    _opener: urllib.request.OpenerDirector = field(init=False)

    def __post_init__(self) -> None:
        context = ssl.create_default_context()
        if self.certificates is not None:
            context.load_verify_locations(self.certificates)
        https = urllib.request.HTTPSHandler(context=context)
        self._opener = urllib.request.build_opener(https, _SafeRedirects())

    def entry_point(self, image: ImageReference, architecture: str) -> EntryPoint:
        """Return what an image for Linux and an architecture executes. Raises ImageRefusedError and RegistryAwayError."""
        manifest = self._manifest(image, architecture)
        wanted = manifest["config"]
        digest = wanted.get("digest") if isinstance(wanted, dict) else None
        if not isinstance(digest, str) or not DIGEST.fullmatch(digest):
            raise ImageRefusedError(f"the manifest of image {image} names no configuration")
        url = f"{self.place.url}/v2/{self.place.repository}/blobs/{digest}"
        answer = self._patiently(lambda: self._get(url, "*/*", MOST_CONFIG, image))
        _verify(answer, digest, f"the configuration of image {image}")
        return entry_point_of(_parse(answer.body, f"the configuration of image {image}"), str(image))

    def _manifest(self, image: ImageReference, architecture: str) -> dict[str, Any]:
        """Return the manifest of an image for one platform."""
        version = image.version
        for _ in range(_MOST_NESTED):
            url = f"{self.place.url}/v2/{self.place.repository}/manifests/{version}"
            answer = self._patiently(lambda url=url: self._get(url, _MANIFESTS, MOST_MANIFEST, image))  # type: ignore[misc]
            if DIGEST.fullmatch(version):
                _verify(answer, version, f"the manifest of image {image}")
            found = _parse(answer.body, f"the manifest of image {image}")
            if "manifests" in found and "config" not in found:
                version = _digest_for(found["manifests"], architecture, image)
            elif "config" in found and "manifests" not in found:
                return found
            else:
                raise ImageRefusedError(f"image {image} has a manifest of a type that is not known")
        raise ImageRefusedError(f"image {image} has more than {_MOST_NESTED} indexes in each other")

    # Calls

    def _patiently(self, call: Callable[[], _T]) -> _T:
        """Call, and again for some time where that may help. Raises ImageRefusedError and RegistryAwayError."""
        pause = _FIRST_PAUSE
        while True:
            begin = time.monotonic()
            try:
                return call()
            except RegistryAwayError:
                self._spent += time.monotonic() - begin + pause
                if self._spent > self.patience:
                    raise
            self.pause(pause)
            pause = min(_LONGEST_PAUSE, pause * 2)

    def _get(self, url: str, accepted: str, most: int, image: ImageReference) -> _Answer:
        """Return an answer of the registry, to which the client identifies itself where it has to."""
        try:
            return self._open(url, most, accepted, self._authorization)
        except urllib.error.HTTPError as error:
            if error.code != _UNAUTHORIZED:
                raise self._refusal(error, image) from error
            challenges = error.headers.get_all("WWW-Authenticate") or []
        self._authorization = self._identify(", ".join(challenges), image)
        try:
            return self._open(url, most, accepted, self._authorization)
        except urllib.error.HTTPError as error:
            self._authorization = ""
            raise self._refusal(error, image) from error

    def _identify(self, challenge: str, image: ImageReference) -> str:
        """Return the header that answers a registry's challenge: with a token that is fetched, or with the credentials."""
        parts = challenges_in(challenge)
        if "bearer" in parts:
            return self._token(parts["bearer"], image)
        if "basic" in parts and self.credentials is not None:
            return self.credentials.basic
        raise self._unauthorized(image, "")

    def _token(self, challenge: dict[str, str], image: ImageReference) -> str:
        realm = urllib.parse.urlsplit(challenge.get("realm", ""))
        if realm.scheme not in ("https", "http") or (self.place.url.startswith("https:") and realm.scheme != "https"):
            raise ImageRefusedError(f"registry {self.place.host} names no place, reached by https, that gives tokens")
        query = dict(urllib.parse.parse_qsl(realm.query))
        query["scope"] = challenge.get("scope") or f"repository:{self.place.repository}:pull"
        if service := challenge.get("service"):
            query["service"] = service
        url = urllib.parse.urlunsplit(realm._replace(query=urllib.parse.urlencode(query), fragment=""))
        basic = "" if self.credentials is None else self.credentials.basic
        try:
            answer = self._open(url, _MOST_TOKEN, "application/json", basic)
        except urllib.error.HTTPError as error:
            raise self._refusal(error, image) from error
        found = _parse(answer.body, f"the token of registry {self.place.host}")
        token = found.get("token") or found.get("access_token")
        if not isinstance(token, str) or not token.isascii() or not token.isprintable():
            raise ImageRefusedError(f"registry {self.place.host} gave no token")
        return f"Bearer {token}"

    def _open(self, url: str, most: int, accepted: str, authorization: str) -> _Answer:
        """Return an answer with its body. Raises HTTPError for a refusal, RegistryAwayError and ImageRefusedError."""
        request = urllib.request.Request(url, headers={"Accept": accepted})  # noqa: S310 - http and https only
        if authorization:
            request.add_unredirected_header("Authorization", authorization)
        ends = time.monotonic() + _ANSWER_SECONDS
        try:
            with self._opener.open(request, timeout=_ANSWER_SECONDS) as answer:
                body = _read(answer, most, ends)
        except urllib.error.HTTPError:
            raise
        except urllib.error.URLError as error:
            if isinstance(error.reason, ssl.SSLCertVerificationError):
                raise ImageRefusedError(
                    f"the certificate of {request.host} is not trusted ({error.reason.verify_message}): a ConfigMap with"
                    " the authority's, which caConfigMap of the agent's arrays.imageEntryPoints names, changes that"
                ) from error
            raise RegistryAwayError(self._unreachable(request.host or url, error.reason)) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise RegistryAwayError(self._unreachable(request.host or url, error)) from error
        return _Answer(body, f"sha256:{hashlib.sha256(body).hexdigest()}")

    # Sentences

    def _unreachable(self, host: str, error: object) -> str:
        name = self.place.host if host == urllib.parse.urlsplit(self.place.url).netloc else host
        is_unknown = isinstance(error, socket.gaierror)
        words = "its name has no address" if is_unknown else (str(error) or type(error).__name__)
        return (
            f"registry {name} cannot be reached from the member's namespace ({words}): write the entry point as `command`, or allow"
            " the registry in isolation.networkPolicy.extraEgress of the agent's chart"
        )

    def _refusal(self, error: urllib.error.HTTPError, image: ImageReference) -> Exception:
        with error:
            said = _said(error)
        if error.code in _PASSING:
            return RegistryAwayError(f"registry {self.place.host} answers {error.code}{said}")
        if error.code in (_UNAUTHORIZED, _FORBIDDEN):
            return self._unauthorized(image, said)
        if error.code == _NOT_FOUND:
            return ImageRefusedError(f"registry {self.place.host} does not have image {image}{said}")
        return ImageRefusedError(f"registry {self.place.host} answers {error.code} for image {image}{said}")

    def _unauthorized(self, image: ImageReference, said: str) -> ImageRefusedError:
        given = "with the credentials that were found" if self.credentials is not None else "without credentials"
        return ImageRefusedError(
            f"registry {self.place.host} does not let image {image} be read {given}{said}: write the entry point as `command`, or"
            " name a pull secret in pullSecrets of the agent's arrays.imageEntryPoints"
        )


def challenges_in(header: str) -> dict[str, dict[str, str]]:
    """Return the challenges in the values of ``WWW-Authenticate`` by scheme in lower case, each with its parameters."""
    marks = list(_SCHEME.finditer(header))
    found: dict[str, dict[str, str]] = {}
    ends = [*(one.start() for one in marks[1:]), len(header)]
    for mark, end in zip(marks, ends, strict=False):
        text = header[mark.end() : end]
        values = {
            one[1].lower(): re.sub(r"\\(.)", r"\1", one[2]) if one[2] is not None else one[3]
            for one in _PARAMETER.finditer(text)
        }
        found.setdefault(mark[1].lower(), values)
    return found


def entry_point_of(config: dict[str, Any], image: str) -> EntryPoint:
    """Return what an image with this configuration executes. Raises ImageRefusedError where that is nothing."""
    own = config.get("config") or {}
    found = [own.get(name) or [] for name in ("Entrypoint", "Cmd")] if isinstance(own, dict) else [[], []]
    for words in found:
        if not isinstance(words, list) or not all(isinstance(one, str) for one in words):
            raise ImageRefusedError(f"the configuration of image {image} has an entry point that is no list of texts")
    if not any(found):
        raise ImageRefusedError(
            f"image {image} has neither an ENTRYPOINT nor a CMD: write what each element executes as `command`"
        )
    return EntryPoint(tuple(found[0]), tuple(found[1]))


def _digest_for(manifests: Any, architecture: str, image: ImageReference) -> str:
    """Return the digest of the manifest for Linux and an architecture, of those that an index names."""
    offered, best = [], ("", "")
    for one in manifests if isinstance(manifests, list) else ():
        platform = one.get("platform") if isinstance(one, dict) else None
        if not isinstance(platform, dict) or platform.get("os") != "linux":
            continue
        offered.append(str(platform.get("architecture")))
        digest, variant = one.get("digest"), str(platform.get("variant") or "")
        if platform.get("architecture") == architecture and isinstance(digest, str) and DIGEST.fullmatch(digest):
            # Of several variants, such as v6 and v7 of arm, or v1 and v3 of amd64: container runtimes take the newest that runs, and
            # all have the same entry point unless somebody wants them to differ.
            best = max(best, (variant or "v", digest))
    if not best[1]:
        words = ", ".join(dict.fromkeys(offered)) or "none"
        raise ImageRefusedError(f"image {image} does not exist for linux/{architecture}: it is for {words}")
    return best[1]


def _verify(answer: _Answer, digest: str, what: str) -> None:
    algorithm, _, _ = digest.partition(":")
    actual = answer.digest if algorithm == "sha256" else f"sha512:{hashlib.sha512(answer.body).hexdigest()}"
    if actual != digest:
        raise ImageRefusedError(f"{what} is not what its digest {digest} names")


def _read(answer: Any, most: int, ends: float) -> bytes:
    parts, size = [], 0
    while part := answer.read1(_CHUNK):
        size += len(part)
        if size > most:
            raise ImageRefusedError(f"{urllib.parse.urlsplit(answer.url).netloc} answers with more than {most} bytes")
        if time.monotonic() > ends:
            raise TimeoutError("the answer takes too long")
        parts.append(part)
    return b"".join(parts)


def _parse(body: bytes, what: str) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ImageRefusedError(f"{what} is no JSON") from error
    if not isinstance(found, dict):
        raise ImageRefusedError(f"{what} is no object")
    return found


def _said(error: urllib.error.HTTPError) -> str:
    """Return the first message in a registry's refusal, in brackets; nothing without any."""
    try:
        errors = json.loads(error.read(_CHUNK))["errors"]
        text = " ".join(str(errors[0].get("message") or errors[0].get("code") or "").split())[:200]
    except Exception:  # noqa: BLE001 - a registry may answer anything
        return ""
    return f" ({text})" if text.isprintable() and text else ""
