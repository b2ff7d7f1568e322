"""Parameter sets: one specification and a table of parameters become one job per row.

``${name}`` in commands, arguments, environment values and working directories is replaced by the job's own value. Other
texts of that form, such as shell variables, stay as they are, with a warning where they may be mistyped parameters. No
field that the scheduler or an admission check reads can be a parameter, so all jobs of a table have one shape and are
admitted together.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import orjson

from trainmaster.protocol.errors import Mistake
from trainmaster.protocol.suggestions import did_you_mean

PLACEHOLDER = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]{0,62}(?:\.[A-Za-z0-9_-]{1,63}){0,3})\}")
"""Names after a dot are those of results of steps, and of fields of elements, in workflows; no shell has such variables."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_LONGEST_VALUE = 4096
_LONGEST_NAME = 63
_MOST_NAMES = 64
_LONGEST_TEXT = 32_768
_LONGEST_SPEC = 262_144
_MOST_MISTAKES = 50
_MOST_NAMED = 10
"""The most parameters of a table that a sentence names."""


def check_sets(sets: Sequence[Any], spec: dict[str, Any]) -> tuple[list[bytes], list[Mistake]]:
    """Return each set as JSON text, and the mistakes. All sets must have the same names, each used in ``spec``."""
    if not isinstance(sets[0], dict) or not sets[0]:
        return [], [Mistake(path="parameters[0]", message="must be a mapping of at least one parameter to its value")]
    names = sets[0].keys()
    if max(map(len, names)) > _LONGEST_NAME:
        message = f"a name has at most {_LONGEST_NAME} characters"
        return [], [Mistake(path="parameters[0]", message=message)]
    if len(names) > _MOST_NAMES:
        message = f"has {len(names)} parameters, at most {_MOST_NAMES} are allowed"
        return [], [Mistake(path="parameters[0]", message=message)]
    size = len(orjson.dumps(spec))
    if size > _LONGEST_SPEC:
        message = f"has {size} bytes; the job of a table has at most {_LONGEST_SPEC}, as it is sent once for each row"
        return [], [Mistake(path="job", message=message)]
    mistakes = [
        Mistake(path=f"parameters[0].{name}", message="a name has letters, digits and _, at most 63, no digit first")
        for name in names
        if not _NAME.fullmatch(name)
    ]
    used = placeholders(spec)
    mistakes += [
        Mistake(
            path=f"parameters[0].{name}",
            message=f"no command, argument or environment value has ${{{name}}}{did_you_mean(name, used)}",
        )
        for name in names
        if _NAME.fullmatch(name) and name not in used
    ]
    for index, item in enumerate(sets):
        if not isinstance(item, dict) or item.keys() != names:
            mistakes.append(
                Mistake(path=f"parameters[{index}]", message=f"must have exactly the parameters {', '.join(names)}")
            )
        else:
            for name, value in item.items():
                if type(value) not in (str, int, float, bool):
                    message = "must be a text, a number, true or false"
                elif type(value) is str and len(value) > _LONGEST_VALUE:
                    message = f"has {len(value)} characters, at most {_LONGEST_VALUE} are allowed"
                else:
                    continue
                mistakes.append(Mistake(path=f"parameters[{index}].{name}", message=message))
        if len(mistakes) >= _MOST_MISTAKES:
            break
    if not mistakes:
        mistakes = too_long(sets, spec)
    return ([] if mistakes else [_short(item) for item in sets]), mistakes


def _short(item: dict[str, Any]) -> bytes:
    """Return a set as JSON text that takes no more memory than its length: that of orjson keeps a buffer of kilobytes."""
    return orjson.dumps(item).decode().encode()


def too_long(sets: Sequence[dict[str, Any]], spec: dict[str, Any]) -> list[Mistake]:
    """Return mistakes where a text, or all of them, could become too long with the longest value of each parameter."""
    longest = {name: max(len(value_text(item[name])) for item in sets) for name in sets[0]}
    most = total = 0

    def measure(text: str) -> str:
        nonlocal most, total
        grown = len(text) + sum(longest[name] - len(name) - 3 for name in PLACEHOLDER.findall(text) if name in longest)
        most, total = max(most, grown), total + grown
        return text

    _rewrite(spec, measure)
    if most > _LONGEST_TEXT:
        return [
            Mistake(path="job", message=f"a text would have {most} characters, at most {_LONGEST_TEXT} are allowed")
        ]
    if total > _LONGEST_SPEC:
        return [
            Mistake(path="job", message=f"its texts would have {total} characters, at most {_LONGEST_SPEC} are allowed")
        ]
    return []


def value_text(value: Any) -> str:
    """Return a value as it is written into the specification."""
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def placeholders(spec: dict[str, Any]) -> set[str]:
    """Return the names of the placeholders in a specification in wire form."""
    return {name for text in texts_of(spec) for name in PLACEHOLDER.findall(text)}


def texts_of(spec: dict[str, Any]) -> list[str]:
    """Return the texts of a specification in wire form that may have placeholders."""
    found: list[str] = []

    def note(text: str) -> str:
        found.append(text)
        return text

    _rewrite(spec, note)
    return found


def unfilled(names: Iterable[str], spec: dict[str, Any]) -> list[Mistake]:
    """Return a warning for each placeholder of a specification that a table with these parameters does not fill, once for each role.

    Variables of the role's own environment, and names in capital letters, are taken for what a shell fills in.
    """
    known = list(names)
    lowered = {name.lower() for name in known}
    listed = ", ".join(known[:_MOST_NAMED]) + (", ..." if len(known) > _MOST_NAMED else "")
    found = []
    for index, role in enumerate(spec.get("roles", ())):
        own = placeholders({"roles": [role]}) - set(known) - _variables(role)
        for name in sorted(own):
            if "." in name:
                continue  # no parameter has such a name
            if name.isupper() and name.lower() not in lowered:
                continue
            message = (
                f"the table has no parameter {name!r}, only {listed}: ${{{name}}} stays as it is{did_you_mean(name, known)};"
                f" a variable of a shell may be written ${name}"
            )
            found.append(Mistake(path=f"roles[{index}]", message=message))
    return found[:_MOST_MISTAKES]


def _variables(role: dict[str, Any]) -> set[str]:
    """Return the names of the variables that a role's environment sets."""
    names = set((role.get("template") or {}).get("env") or ())
    inner = (role.get("podTemplate") or {}).get("spec") or {}
    for kind in ("initContainers", "containers"):
        for container in inner.get(kind) or ():
            env = container.get("env") if isinstance(container, dict) else None
            names |= {str(one.get("name")) for one in env or () if isinstance(one, dict)}
    return names


def substitute(spec: dict[str, Any], parameters: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of a specification in wire form with one set's values."""
    texts = {name: value_text(value) for name, value in parameters.items()}
    return _rewrite(spec, lambda text: PLACEHOLDER.sub(lambda match: texts.get(match[1], match[0]), text))


Change = Callable[[str], str]


def _rewrite(spec: dict[str, Any], change: Change) -> dict[str, Any]:
    roles = []
    for role in spec.get("roles", ()):
        new = dict(role)
        if role.get("template") is not None:
            new["template"] = _template(role["template"], change)
        if role.get("podTemplate") is not None:
            new["podTemplate"] = _pod(role["podTemplate"], change)
        roles.append(new)
    return spec | {"roles": roles}


def _template(template: dict[str, Any], change: Change) -> dict[str, Any]:
    new = dict(template)
    for key in ("command", "args"):
        if key in new:
            new[key] = [change(text) for text in new[key]]
    if "env" in new:
        new["env"] = {name: change(value) for name, value in new["env"].items()}
    if "workingDir" in new:
        new["workingDir"] = change(new["workingDir"])
    return new


def _pod(pod: dict[str, Any], change: Change) -> dict[str, Any]:
    inner = dict(pod.get("spec") or {})
    for kind in ("initContainers", "containers"):
        if isinstance(inner.get(kind), list):
            inner[kind] = [_container(one, change) if isinstance(one, dict) else one for one in inner[kind]]
    return pod | {"spec": inner}


def _container(container: dict[str, Any], change: Change) -> dict[str, Any]:
    new = dict(container)
    for key in ("command", "args"):
        if isinstance(new.get(key), list):
            new[key] = [change(text) if isinstance(text, str) else text for text in new[key]]
    if isinstance(new.get("env"), list):
        new["env"] = [
            item | {"value": change(item["value"])}
            if isinstance(item, dict) and isinstance(item.get("value"), str)
            else item
            for item in new["env"]
        ]
    if isinstance(new.get("workingDir"), str):
        new["workingDir"] = change(new["workingDir"])
    return new
