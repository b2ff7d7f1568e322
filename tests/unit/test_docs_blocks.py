"""Every block of README, tutorial and how-tos is run, checked, or says why not; commands of all pages name what exists."""

import re
from pathlib import Path

import pytest

from tests.docs import commands, data_blocks
from tests.docs.pages import (
    COMMANDS,
    MARKS,
    ROOT,
    Block,
    all_pages,
    blocks_of,
    inline_code,
    read_blocks,
    steps_of,
    user_pages,
)

BLOCKS = [block for path in user_pages() for block in blocks_of(path)]
OTHER_BLOCKS = [block for path in all_pages() if path not in user_pages() for block in blocks_of(path)]
_COMMAND = re.compile(r"(\$ )?(trainmaster|helm|curl) ")
_SYNTAX = re.compile(r"[\[|]|\bCOMMAND\b")
"""In code that describes commands instead of being one."""
_CALL = re.compile(r"(GET|POST|PUT|PATCH|DELETE) (/[^ ?]+)(\?.*)?")
_FEWEST_WORDS = 2


def mistakes_of(block: Block) -> list[str]:
    """Return why a block is in none of the classes, or in one by mistake."""
    found = [
        f"there is no mark {name!r}; there are: {', '.join(MARKS)}" for name, _ in block.marks if name not in MARKS
    ]
    reason, test = block.mark("not run"), block.mark("run by")
    if reason is not None and len(reason.split()) < _FEWEST_WORDS:
        found.append("'not run' gives no reason")
    if test is not None and not (ROOT / test).is_file():
        found.append(f"'run by' names {test}, which does not exist")
    if block.language in COMMANDS:
        found += [] if steps_of(block) else ["it has no command"]
    elif block.language in data_blocks.LANGUAGES:
        found += data_blocks.mistakes_in(block)
    elif block.language != "text":
        found.append(f"its language is {block.language or 'not given'}: sh, console, text or one of data")
    elif reason is None and test is None:
        found.append("a block of text is neither run nor checked: say why, by 'not run'")
    return found


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: block.place)
def test_every_block_is_run_or_checked_or_says_why_not(block: Block) -> None:
    assert mistakes_of(block) == []


def commands_in(block: Block) -> list[str]:
    """Return the lines of a block, of whatever language, that are commands, also those that an output tells to run."""
    if block.language in COMMANDS:
        return [
            line
            for step in steps_of(block)
            for line in (step.command, *(one for one in step.shown or () if _COMMAND.match(one)))
        ]
    lines = [] if block.language in data_blocks.LANGUAGES else block.text.replace("\\\n", " ").splitlines()
    return [line.removeprefix("$ ") for line in lines if _COMMAND.match(line)]


def mistakes_in_sentence(code: str) -> list[str]:
    """Return what is wrong with code within a sentence: commands, of which the sentence may name a part, and calls of the api."""
    call = _CALL.fullmatch(code)
    if call:
        return [] if commands.is_route(call[1], call[2]) else [f"the api has no {code}"]
    is_command = code.startswith("trainmaster ") and not _SYNTAX.search(code)
    return commands.mistakes_in(code, is_whole=False) if is_command else []


@pytest.mark.parametrize("path", all_pages(), ids=lambda path: path.name)
def test_every_command_exists_with_its_options(path: Path) -> None:
    found = [(block.place, commands.mistakes_in(line)) for block in blocks_of(path) for line in commands_in(block)]
    found += [(f"{path.name}:{line}", mistakes_in_sentence(code)) for line, code in inline_code(path)]
    assert [(place, mistakes) for place, mistakes in found if mistakes] == []


@pytest.mark.parametrize("block", OTHER_BLOCKS, ids=lambda block: block.place)
def test_data_of_the_other_pages_is_right_as_well(block: Block) -> None:
    if block.language in data_blocks.LANGUAGES:
        assert data_blocks.mistakes_in(block) == []


def block(text: str) -> Block:
    (found,) = read_blocks("page.md", text)
    return found


WRONG = {
    "no language": ("```\ntrainmaster queues\n```", "its language is not given"),
    "an unknown language": ("```bash\ntrainmaster queues\n```", "its language is bash"),
    "a text without a reason": ("```text\nNAME\n```", "say why"),
    "an empty reason": ("<!-- not run: -->\n```sh\ntrainmaster queues\n```", "gives no reason"),
    "an unknown mark": ("<!-- skipped: no cluster -->\n```sh\ntrainmaster queues\n```", "there is no mark 'skipped'"),
    "a test that does not exist": ("<!-- run by: tests/nothing.py -->\n```sh\nscripts/demo\n```", "does not exist"),
    "a wrong field": ("```yaml\nkind: Queue\npath: a\nwieght: 2\n```", "wieght"),
    "a document of no kind": ("```yaml\nweight: 2\n```", "no kind of Trainmaster"),
    "a wrong value of a chart": (
        "<!-- checked as: values of the agent's chart -->\n```yaml\nisolated: {}\n```",
        "isolated",
    ),
    "a text that differs from its file": (
        "<!-- checked as: examples/hello.yaml -->\n```yaml\nkind: Job\n```",
        "another text",
    ),
    "Python that does not compile": ("```python\nwith Client() as:\n```", "invalid syntax"),
    "a method that clients do not have": ("```python\nclient.sumbit(spec)\n```", "clients have no sumbit"),
    "a parameter that a method does not take": ("```python\nclient.wait(job, timout=1)\n```", "takes no timout"),
    "a class that the SDK does not have": (
        "```python\ntry:\n    ...\nexcept TooLateError:\n    ...\n```",
        "no TooLateError",
    ),
    "broken JSON": ("```json\n{a: 1}\n```", "property name"),
    "a workload with an unknown column": ("```csv\nsubmit,ran\n0,1\n```", "ran"),
}


@pytest.mark.parametrize(("text", "finding"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_with_a_block_is_found(text: str, finding: str) -> None:
    assert any(finding in mistake for mistake in mistakes_of(block(text))), mistakes_of(block(text))


WRONG_COMMANDS = {
    "a command": ("trainmaster submitt job.yaml", "no such command 'submitt'"),
    "a command of a group": ("trainmaster clusters show east", "no such command 'show'"),
    "an option": ("trainmaster queues --wacht", "--wacht"),
    "an argument too few": ("trainmaster why", "ID"),
    "a number that is none": ("trainmaster jobs --limit many", "--limit"),
    "a command behind another": ("cat job.yaml | trainmaster submit - --folow", "--folow"),
    "a command within another": ("JOB=$(trainmaster sumbit job.yaml)", "sumbit"),
    "a command in a container": ("docker compose exec -T api-users trainmaster quueues", "quueues"),
    "a value of a chart": ("helm install a deploy/charts/agent --set clusterName=east", "clusterName"),
    "a value below another": ("helm install a deploy/charts/dispatcher --set postgresql.bundle=true", "bundle"),
    "a value of a wrong type": ("helm install a deploy/charts/agent --set 'queues=research'", "research"),
    "a path": ("curl http://127.0.0.1:8470/ready", "/ready"),
}


@pytest.mark.parametrize(("line", "finding"), WRONG_COMMANDS.values(), ids=WRONG_COMMANDS)
def test_what_is_wrong_with_a_command_is_found(line: str, finding: str) -> None:
    found = commands.mistakes_in(line)
    assert any(finding in mistake for mistake in found), found


def test_right_commands_of_all_forms_pass() -> None:
    for line in (
        "DATABASE_URL=postgresql://... trainmaster backup --out a.backup  # of one's own",
        "trainmaster jobs --limit N",
        "trainmaster submit examples/hello.yaml --follow > out 2>&1",
        "(cd dist && sha256sum --check SHA256SUMS)",
        "curl --fail http://127.0.0.1:8470/readyz",
    ):
        assert commands.mistakes_in(line) == []


def test_marks_belong_to_the_block_below_them() -> None:
    page = "\n".join(
        (
            "<!-- file: a.yaml -->",
            "Text.",
            "   <!-- not run: needs",
            "   a cluster -->",
            "   <!-- first:",
            "   mkdir a",
            "   cd a",
            "   -->",
            "   ```console",
            "   $ trainmaster run \\",
            "   > -- true",
            "   done",
            "   ",
            "   $ echo $?",
            "   0",
            "   ```",
            "```sh",
            "true  # nothing",
            "echo $?   # 3: not done",
            "```",
        )
    )
    first, second = read_blocks("page.md", page)
    assert first.marks == (("not run", "needs\na cluster"), ("first", "mkdir a\ncd a"))
    assert (first.line, first.is_run) == (9, False)
    assert [(step.line, step.command, step.shown) for step in steps_of(first)] == [
        (10, "trainmaster run \\\n-- true", ("done", "")),
        (14, "echo $?", ("0",)),
    ]
    assert (second.marks, second.is_run) == ((), True)
    assert [step.shown for step in steps_of(second)] == [None, ("3",)]
