"""Archives of folders: equal content gives equal archives, ignored files stay out, and nothing is extracted outside of the folder."""

import contextlib
import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.archives import ArchiveError, IgnoreRules, Packed, pack, real_path, unpack


def filled(folder: Path, **files: str) -> Path:
    """Create files by path, with ``__`` for slashes."""
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def packed(folder: Path, **options: bool) -> tuple[Packed, io.BytesIO]:
    file = io.BytesIO()
    made = pack(folder, file, **options)
    file.seek(0)
    return made, file


def names_in(file: io.BytesIO) -> list[str]:
    with tarfile.open(fileobj=file, mode="r:gz") as archive:
        return archive.getnames()


def archive_of(*entries: tuple[str, bytes | str | None], kind: bytes = tarfile.SYMTYPE) -> io.BytesIO:
    """Return an archive as an attacker may write it: bytes are files, texts links, None folders."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, content in entries:
            info = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
                continue
            info.type = tarfile.DIRTYPE if content is None else kind
            info.linkname = content or ""
            archive.addfile(info)
    file.seek(0)
    return file


class TestPacking:
    def test_equal_content_gives_an_equal_archive_whenever_it_was_written(self, tmp_path: Path) -> None:
        names = {"b": "1", "a__c": "2", "a__b": "3"}
        first = filled(tmp_path / "one", **names)
        second = filled(tmp_path / "two", **dict(reversed(names.items())))
        os.utime(second / "b", (1, 1))
        (second / "b").chmod(0o600)
        assert packed(first)[0] == packed(second)[0]
        assert packed(first)[1].getvalue() == packed(second)[1].getvalue()

    def test_other_content_another_mode_or_another_name_gives_another_archive(self, tmp_path: Path) -> None:
        folder = filled(tmp_path, a="1")
        seen = {packed(folder)[0].sha256}
        (folder / "a").write_text("2")
        seen.add(packed(folder)[0].sha256)
        (folder / "a").chmod(0o755)
        seen.add(packed(folder)[0].sha256)
        (folder / "a").rename(folder / "b")
        seen.add(packed(folder)[0].sha256)
        assert len(seen) == 4

    def test_what_is_extracted_is_what_was_packed(self, tmp_path: Path) -> None:
        folder = filled(tmp_path / "from", a__b__c="deep", run="#!/bin/sh\n", ü="ü")
        (folder / "run").chmod(0o755)
        (folder / "a/link").symlink_to("../run")
        (folder / "empty").mkdir()
        made, file = packed(folder)
        assert unpack(file, tmp_path / "to") == made.entries == 7
        assert (tmp_path / "to/a/b/c").read_text() == "deep"
        assert (tmp_path / "to/a/link").readlink() == Path("../run")
        assert (tmp_path / "to/run").stat().st_mode & 0o777 == 0o755
        assert (tmp_path / "to/a/b/c").stat().st_mode & 0o777 == 0o644
        assert (tmp_path / "to/empty").is_dir()
        assert packed(tmp_path / "to")[0] == made

    def test_a_file_is_packed_by_its_name(self, tmp_path: Path) -> None:
        filled(tmp_path, model="weights")
        assert names_in(packed(tmp_path / "model")[1]) == ["model"]

    @pytest.mark.parametrize("target", ["/etc/passwd", "../outside", "a/../../outside", "a/.."])
    def test_a_link_that_leads_elsewhere_is_refused(self, tmp_path: Path, target: str) -> None:
        (tmp_path / "link").symlink_to(target)
        with pytest.raises(ArchiveError, match="members could not follow it"):
            packed(tmp_path)

    def test_a_pipe_is_refused_with_a_way_out(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(ArchiveError, match=r"neither a file nor a folder.*\.trainmasterignore"):
            packed(tmp_path)

    def test_a_larger_archive_than_allowed_is_given_up_early(self, tmp_path: Path) -> None:
        (tmp_path / "noise").write_bytes(os.urandom(100_000))
        with pytest.raises(ArchiveError, match="larger than the 50000 bytes"):
            pack(tmp_path, io.BytesIO(), most=50_000)


class TestIgnoredFiles:
    def test_what_the_file_names_is_left_out(self, tmp_path: Path) -> None:
        filled(
            tmp_path,
            keep="1",
            data__big="1",
            logs__x="1",
            a__b__note="1",
            a__note="1",
            **{"a__x.pyc": "1", "x.pyc": "1", "keep.pyc": "1", "__pycache____z": "1"},
        )
        filled(tmp_path / ".git", config="1")
        (tmp_path / ".trainmasterignore").write_text("# large\n/data/\nlogs\n*.pyc\n!keep.pyc\na/**/note\n\n")
        assert sorted(names_in(packed(tmp_path)[1])) == [".trainmasterignore", "a", "a/b", "keep", "keep.pyc"]

    def test_what_is_always_left_out_can_be_taken_back(self, tmp_path: Path) -> None:
        filled(tmp_path / ".git", config="1")
        assert names_in(packed(tmp_path)[1]) == []
        (tmp_path / ".trainmasterignore").write_text("!.git/\n")
        assert names_in(packed(tmp_path)[1]) == [".git", ".trainmasterignore", ".git/config"]

    def test_outputs_are_packed_whole(self, tmp_path: Path) -> None:
        filled(tmp_path / "__pycache__", x="1")
        assert "__pycache__/x" in names_in(packed(tmp_path, honours_ignore_file=False)[1])

    @pytest.mark.parametrize(
        ("pattern", "path", "is_folder", "left_out"),
        [
            ("build", "a/build", False, True),
            ("/build", "a/build", False, False),
            ("build/", "build", False, False),
            ("build/", "a/build", True, True),
            ("a/*.txt", "a/b.txt", False, True),
            ("a/*.txt", "a/b/c.txt", False, False),
            ("**/x", "x", False, True),
            ("a/**", "a/b/c", False, True),
            ("a?c", "abc", False, True),
            ("a?c", "a/c", False, False),
            (r"\#x", "#x", False, True),
            ("a.b", "axb", False, False),
        ],
    )
    def test_patterns_are_those_of_git(self, pattern: str, path: str, is_folder: bool, left_out: bool) -> None:
        assert IgnoreRules([pattern]).leaves_out(path, is_folder=is_folder) is left_out


class TestUnsafeArchives:
    @pytest.mark.parametrize(
        "make",
        [
            lambda: archive_of(("../escaped", b"x")),
            lambda: archive_of(("/tmp/escaped-by-archive", b"x")),
            lambda: archive_of(("a/../../escaped", b"x")),
            lambda: archive_of(("link", "/etc"), ("link/x", b"x")),
            lambda: archive_of(("link", "..")),
            lambda: archive_of(("a", None), ("a/link", "../..")),
            lambda: archive_of(("s", "."), ("t", "s/s/../..")),
            lambda: archive_of(("hard", "/etc/passwd"), kind=tarfile.LNKTYPE),
            lambda: archive_of(("pipe", ""), ("pipe", "x"), kind=tarfile.FIFOTYPE),
            lambda: archive_of(("device", "x"), kind=tarfile.CHRTYPE),
            lambda: io.BytesIO(b"this is no archive"),
        ],
    )
    def test_it_is_refused_and_nothing_is_written_outside(self, tmp_path: Path, make: Callable[[], io.BytesIO]) -> None:
        target = tmp_path / "deep/target"
        with pytest.raises(ArchiveError):
            unpack(make(), target)
        assert not [path for path in tmp_path.rglob("escaped*") if not path.is_relative_to(target)]
        assert not Path("/tmp/escaped-by-archive").exists()

    def test_no_file_is_written_through_a_link_of_the_archive(self, tmp_path: Path) -> None:
        """Links are made last, so that a file of the same path is no way out either."""
        with pytest.raises(ArchiveError, match="is a folder, too"):
            unpack(archive_of(("in", None), ("link", "in"), ("link/x", b"x")), tmp_path / "to")
        assert not (tmp_path / "to/in/x").exists()

    def test_no_file_is_written_through_a_link_that_was_there(self, tmp_path: Path) -> None:
        (tmp_path / "to").mkdir()
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "to/sub").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(ArchiveError, match="is a symbolic link where the archive has a folder"):
            unpack(archive_of(("sub/x", b"x")), tmp_path / "to")
        assert not list((tmp_path / "elsewhere").iterdir())

    def test_a_link_in_the_place_of_a_file_is_replaced_not_followed(self, tmp_path: Path) -> None:
        victim = filled(tmp_path, victim="mine") / "victim"
        (tmp_path / "to").mkdir()
        (tmp_path / "to/x").symlink_to(victim)
        unpack(archive_of(("x", b"theirs")), tmp_path / "to")
        assert victim.read_text() == "mine"
        assert (tmp_path / "to/x").read_text() == "theirs"

    @given(
        links=st.lists(
            st.tuples(
                st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map("/".join),
                st.lists(st.sampled_from(["a", "b", "c", "..", "."]), min_size=1, max_size=5).map("/".join),
            ),
            max_size=6,
        )
    )
    def test_whatever_links_it_has_none_leads_out(
        self, tmp_path_factory: pytest.TempPathFactory, links: list[tuple[str, str]]
    ) -> None:
        folder = tmp_path_factory.mktemp("links") / "to"
        with contextlib.suppress(ArchiveError):
            unpack(archive_of(*links), folder)
        inside = folder.resolve()
        for path in folder.rglob("*"):
            try:
                found = path.resolve(strict=True)
            except (OSError, RuntimeError):
                continue
            assert found.is_relative_to(inside), (links, path)


class TestPathsOfOutputs:
    def test_a_last_link_is_followed_inside_of_the_folder(self, tmp_path: Path) -> None:
        filled(tmp_path, out__v2__x="1")
        (tmp_path / "out/latest").symlink_to("v2")
        assert real_path(tmp_path, "out/latest") == "out/v2"
        assert real_path(tmp_path, "out/v2/x") == "out/v2/x"

    @pytest.mark.parametrize("target", ["/etc", "../..", "../../etc"])
    def test_one_that_leads_out_is_refused(self, tmp_path: Path, target: str) -> None:
        (tmp_path / "out").mkdir()
        (tmp_path / "out/x").symlink_to(target)
        with pytest.raises(ArchiveError):
            real_path(tmp_path, "out/x")

    def test_one_on_the_way_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "out").symlink_to("/etc")
        with pytest.raises(ArchiveError, match="leads through a symbolic link"):
            real_path(tmp_path, "out/passwd")
