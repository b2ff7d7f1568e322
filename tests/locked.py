"""The lists of locked packages in requirements/."""

import re

from tests.compose_file import ROOT

LISTS = sorted((ROOT / "requirements").glob("*.txt"))


def versions(name: str) -> dict[str, str]:
    """Return the locked version of each package of a list such as ``demo``."""
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    return dict(re.findall(r"^([a-z0-9._-]+)==(\S+)", text, re.MULTILINE))


def constraints(name: str) -> str:
    """Return a list without its hashes: pip takes no hashes beside a package of this machine."""
    return "".join(f"{package}=={version}\n" for package, version in versions(name).items())
