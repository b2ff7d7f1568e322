"""Archives of folders and files: gzipped tar files that depend on their content alone, and their safe extraction.

Standard library only: members' helpers import it. Equal content gives an equal archive, whoever packs it and when.
"""

import gzip
import hashlib
import io
import os
import posixpath
import re
import stat
import tarfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, NamedTuple

IGNORE_FILE = ".trainmasterignore"
ALWAYS_IGNORED = (".git/", "__pycache__/", ".venv/")
"""Rules that hold for each folder before its own."""
MOST_ENTRIES = 500_000
"""The most entries of an archive."""
_LEVEL = 6
_CHUNK = 1024 * 1024
_MODE, _EXECUTABLE = 0o644, 0o755
_CANNOT_BE_PACKED = "is neither a file nor a folder nor a symbolic link"


class ArchiveError(Exception):
    """A folder that cannot be packed, or an archive that is not extracted; says why."""


class Packed(NamedTuple):
    """An archive that was written."""

    sha256: str
    size: int
    entries: int


class _HashingFile(io.RawIOBase):
    """Passes on what is written, counts and hashes it, and refuses more than ``most`` bytes."""

    def __init__(self, file: IO[bytes], most: int | None) -> None:
        self._file = file
        self._most = most
        self.size = 0
        self.digest = hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, data: "bytes | bytearray | memoryview") -> int:  # type: ignore[override]
        self._file.write(data)
        self.size += len(data)
        if self._most is not None and self.size > self._most:
            raise ArchiveError(f"its archive is larger than the {self._most} bytes that are allowed")
        self.digest.update(data)
        return len(data)


class IgnoreRules:
    """Patterns of files that are left out, in the syntax of ``.gitignore``.

    A pattern with a slash at its begin or inside is for the whole path; others are for a name at any depth. ``*`` and ``?`` stop at
    slashes, ``**`` does not; a slash at the end is for folders alone; ``!`` takes back what an earlier pattern left out.
    """

    def __init__(self, lines: Iterable[str]) -> None:
        self._rules = [rule for line in lines if (rule := _rule(line)) is not None]

    @classmethod
    def of(cls, folder: Path) -> "IgnoreRules":
        """Read the rules of a folder, which come after those that hold everywhere and may take these back."""
        try:
            own = (folder / IGNORE_FILE).read_text(encoding="utf-8", errors="replace").splitlines()
        except (FileNotFoundError, NotADirectoryError):
            own = []
        return cls((*ALWAYS_IGNORED, *own))

    def leaves_out(self, path: str, *, is_folder: bool) -> bool:
        """Return whether a path, relative and with slashes, is left out by itself; what a folder that is left out has is, too."""
        found = False
        for pattern, takes_back, of_folders in self._rules:
            if (is_folder or not of_folders) and pattern.fullmatch(path):
                found = not takes_back
        return found


def _rule(line: str) -> tuple[re.Pattern[str], bool, bool] | None:
    text = line.rstrip("\n").rstrip()
    if not text or text.startswith("#"):
        return None
    takes_back = text.startswith("!")
    text = text[1:] if takes_back else text.removeprefix("\\")
    of_folders = text.endswith("/")
    text = text.rstrip("/")
    if not text:
        return None
    is_whole = "/" in text
    text = text.lstrip("/")
    pattern = "" if is_whole else "(?:.*/)?"
    position = 0
    while position < len(text):
        if text.startswith("**/", position):
            pattern, position = pattern + "(?:.*/)?", position + 3
        elif text.startswith("**", position):
            pattern, position = pattern + ".*", position + 2
        else:
            one = text[position]
            pattern += {"*": "[^/]*", "?": "[^/]"}.get(one) or re.escape(one)
            position += 1
    return re.compile(pattern, re.DOTALL), takes_back, of_folders


def pack(source: Path, file: IO[bytes], *, most: int | None = None, honours_ignore_file: bool = True) -> Packed:
    """Write the archive of a folder's content, or of a file by its name, to ``file``.

    ``most``: the most bytes of the archive. Raises ArchiveError for what cannot be packed, OSError for what cannot be read.
    """
    out = _HashingFile(file, most)
    entries = 0
    rules = IgnoreRules.of(source) if honours_ignore_file else IgnoreRules(())
    with (
        gzip.GzipFile(filename="", mode="wb", compresslevel=_LEVEL, fileobj=out, mtime=0) as stream,
        tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, path in _entries(source, rules):
            _add(archive, name, path, source)
            entries += 1
            if entries > MOST_ENTRIES:
                raise ArchiveError(f"{source} has more than {MOST_ENTRIES} files and folders")
    return Packed(out.digest.hexdigest(), out.size, entries)


def _entries(source: Path, rules: IgnoreRules) -> Iterator[tuple[str, Path]]:
    """Yield names and paths in the order of the names, folders before their content."""
    if not source.is_dir():
        yield source.name, source
        return
    stack = [""]
    while stack:
        inner = stack.pop()
        with os.scandir(source / inner) as found:
            ordered = sorted(found, key=lambda entry: os.fsencode(entry.name))
        folders = []
        for entry in ordered:
            name = posixpath.join(inner, entry.name)
            is_folder = entry.is_dir(follow_symlinks=False)
            if rules.leaves_out(name, is_folder=is_folder):
                continue
            yield name, source / name
            if is_folder:
                folders.append(name)
        stack += reversed(folders)


def _add(archive: tarfile.TarFile, name: str, path: Path, source: Path) -> None:
    info = tarfile.TarInfo(name)
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise ArchiveError(f"{path!r}: its name is not UTF-8") from error
    found = path.lstat()
    if stat.S_ISLNK(found.st_mode):
        info.type, info.linkname, info.mode = tarfile.SYMTYPE, str(path.readlink()), 0o777
        if (wrong := _wrong_link(name, info.linkname)) is not None:
            raise ArchiveError(f"{path}: the symbolic link to {info.linkname!r} {wrong}; members could not follow it")
        archive.addfile(info)
    elif stat.S_ISDIR(found.st_mode):
        info.type, info.mode = tarfile.DIRTYPE, _EXECUTABLE
        archive.addfile(info)
    elif stat.S_ISREG(found.st_mode):
        with path.open("rb") as data:
            size = os.fstat(data.fileno()).st_size
            info.size, info.mode = size, _EXECUTABLE if found.st_mode & 0o100 else _MODE
            try:
                archive.addfile(info, data)
            except OSError as error:
                raise ArchiveError(f"{path} was changed while it was read: {error}") from error
    else:
        raise ArchiveError(f"{path} {_CANNOT_BE_PACKED}: leave it out by {IGNORE_FILE} in {source}")


def _wrong_link(name: str, target: str) -> str | None:
    """Return why a link is not safe, or None: '..' comes first only, and no more often than there are folders above the link.

    Links of this form stay inside, also where they lead through one another: each '..' is resolved from a folder that is none.
    """
    if target.startswith("/") or not target or "\0" in target:
        return "leads to an absolute path"
    parts = [part for part in target.split("/") if part not in ("", ".")]
    up = 0
    while up < len(parts) and parts[up] == "..":
        up += 1
    if ".." in parts[up:]:
        return "has '..' behind a name"
    return "leads out of the archive" if up > name.count("/") else None


def real_path(folder: Path, path: str) -> str:
    """Return a path inside of a folder without a symbolic link in it; only the last part may be one, which is followed once.

    Raises ArchiveError, whose words go on with the path, where it leads elsewhere. Paths above the folder are not looked at.
    """
    found = path
    if (folder / path).is_symlink():
        target = str((folder / path).readlink())
        if _wrong_link(path, target) is not None:
            raise ArchiveError("is a symbolic link that leads out of the folder")
        found = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    parts = found.split("/")
    if ".." in parts or any((folder / "/".join(parts[:depth])).is_symlink() for depth in range(1, len(parts) + 1)):
        raise ArchiveError("leads through a symbolic link")
    return found


def unpack(file: IO[bytes], folder: Path, *, folder_mode: int = _EXECUTABLE, may_be_shared: bool = False) -> int:
    """Extract an archive to a folder, which is created; return the number of entries.

    Files are replaced. Nothing is written outside of the folder: names and links that would lead there, hard links, devices and
    pipes are refused. ``may_be_shared``: files and folders may be written to by everybody. Raises ArchiveError, and OSError.
    """
    more = 0o022 if may_be_shared else 0
    folder.mkdir(parents=True, exist_ok=True)
    links: list[tuple[str, str]] = []
    count = 0
    try:
        with tarfile.open(fileobj=file, mode="r:gz") as archive:
            for info in archive:
                count += 1
                if count > MOST_ENTRIES:
                    raise ArchiveError(f"it has more than {MOST_ENTRIES} entries")
                name = _safe_name(info.name)
                if info.issym():
                    if (wrong := _wrong_link(name, info.linkname)) is not None:
                        raise ArchiveError(f"its symbolic link {name!r} {wrong}")
                    links.append((name, info.linkname))
                elif info.isdir():
                    _make_folder(folder, name, folder_mode | more)
                elif info.isreg():
                    _write(folder, name, archive, info, more)
                else:
                    raise ArchiveError(f"its entry {name!r} is neither a file nor a folder nor a symbolic link")
    except (tarfile.TarError, EOFError, gzip.BadGzipFile) as error:
        raise ArchiveError(f"it cannot be read: {error}") from error
    # After all files: none is written through a link of the archive.
    for name, target in links:
        path = _inside(folder, name, folder_mode | more)
        if path.is_dir() and not path.is_symlink():
            raise ArchiveError(f"its symbolic link {name!r} is a folder, too")
        path.unlink(missing_ok=True)
        path.symlink_to(target)
    return count


def _safe_name(name: str) -> str:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or "\0" in name:
        raise ArchiveError(f"its entry {name!r} would be outside of the folder")
    return "/".join(parts)


def _inside(folder: Path, name: str, mode: int) -> Path:
    """Return the path of an entry, with the folders above it made. A link in its way is refused."""
    parts = name.split("/")
    for depth in range(1, len(parts)):
        _make_folder(folder, "/".join(parts[:depth]), mode)
    return folder / name


def _make_folder(folder: Path, name: str, mode: int) -> None:
    if not name:
        return
    path = folder
    for part in name.split("/"):
        path = path / part
        if path.is_symlink():
            raise ArchiveError(f"{path} is a symbolic link where the archive has a folder")
        try:
            path.mkdir()
        except FileExistsError as error:
            if not path.is_dir():
                raise ArchiveError(f"{path} is a file where the archive has a folder") from error
        else:
            path.chmod(mode)


def _write(folder: Path, name: str, archive: tarfile.TarFile, info: tarfile.TarInfo, more: int) -> None:
    path = _inside(folder, name, _EXECUTABLE | more)
    if not name or (path.is_dir() and not path.is_symlink()):
        raise ArchiveError(f"its file {name!r} is a folder, too")
    path.unlink(missing_ok=True)
    mode = (_EXECUTABLE if info.mode & 0o100 else _MODE) | more
    data = archive.extractfile(info)
    if data is None:
        raise ArchiveError(f"its entry {name!r} has no data")
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(target, "wb") as out:
        while chunk := data.read(_CHUNK):
            out.write(chunk)
        os.fchmod(out.fileno(), mode)


def hash_of(file: IO[bytes], read: Callable[[bytes], object] | None = None) -> tuple[str, int]:
    """Return the SHA-256 and the size of what is left of a file; ``read`` is called with each piece."""
    digest, size = hashlib.sha256(), 0
    while chunk := file.read(_CHUNK):
        digest.update(chunk)
        size += len(chunk)
        if read is not None:
            read(chunk)
    return digest.hexdigest(), size
