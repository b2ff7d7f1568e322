"""A page's commands share one shell; a command that fails, hangs or prints something else is found."""

import os
import sys
from pathlib import Path

import pytest

from tests.docs.pages import read_blocks
from tests.docs.session import Ran, complaints, run_page


def run(page: str, folder: Path, seconds: float = 60) -> list[Ran]:
    env = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(folder)}
    return run_page(list(read_blocks("page.md", page)), folder / "page", env, seconds)


GOOD = """
<!-- first: mkdir made; GREETING=hello -->
```sh
cd made
export NAME=you
```

<!-- file: a/b.yaml -->
```yaml
a: "$HOME"
```

<!-- with: THAT = $(cat a/b.yaml) -->
```console
$ echo $GREETING \\
>   $NAME; pwd
hello you
/somewhere/made
$ echo THAT
a: "$HOME"
$ read -r answer; echo "sure? [y/N]: $answer"
sure? [y/N]: y
$ test -e ../README.md; echo $?
0
```

<!-- not run: it would end the shell -->
```sh
exit 1
```

```sh
(exit 3)
echo $?   # 3: it could not
```

```console
$ trainmaster version
trainmaster 0.0.1 (Python 3.0.0)
$ trainmaster version | wc -l > lines; cat lines
1
$ trainmaster why
...
$ echo $?
2
```
"""


def test_a_page_whose_commands_do_what_it_says_has_no_complaints(tmp_path: Path) -> None:
    ran = run(GOOD, tmp_path)
    assert list(complaints(ran)) == []
    assert [one.step.line for one in ran if not one.is_hidden] == [4, 5, 15, 19, 21, 23, 33, 34, 38, 40, 42, 44]


BAD = {
    "a command that fails": ("```sh\ntrue\nfalse\n```", "page.md:3: false\n  ended with 1"),
    "a preparation that fails": ("<!-- first: nothing-such -->\n```sh\ntrue\n```", "nothing-such\n  ended with 127"),
    "another exit code": ("```sh\n(exit 4)\necho $?   # 3: no\n```", "the exit code is 4, the page says ('3',)"),
    "another output": ("```console\n$ echo created\nchanged\n```", "the page has 'changed', the output 'created'"),
    "an output that is not shown": ("```console\n$ echo one\n```", "line 1 of the output is not in the page: 'one'"),
    "a warning that is not shown": (
        "```console\n$ echo a; echo b >&2\na\n```",
        "line 2 of the output is not in the page",
    ),
    "a command that ends the shell": ("```sh\nexit 0\n```", "exit 0\n  did not end"),
    "broken syntax": ("```sh\nif true\n```", "if true\n  ended with"),
}


@pytest.mark.parametrize(("page", "finding"), BAD.values(), ids=BAD)
def test_what_a_page_says_wrongly_is_found(tmp_path: Path, page: str, finding: str) -> None:
    found = list(complaints(run(page, tmp_path)))
    assert any(finding in complaint for complaint in found), found


def test_a_command_that_does_not_end_is_found_and_ended(tmp_path: Path) -> None:
    page = "```sh\necho first\necho begun; sleep 1000\necho never\n```"
    (found,) = complaints(run(page, tmp_path, seconds=3))
    assert "sleep 1000\n  did not end; its output until then:\nbegun" in found
