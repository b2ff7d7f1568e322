"""pydantic's errors as mistakes with the path that a person would write."""

from pydantic import ValidationError

from trainmaster.protocol.errors import Mistake

_MOST = 100
_LONGEST_PART, _LONGEST_PATH, _LONGEST_MESSAGE = 100, 500, 1000
"""The most characters of quoted keys and texts, which come from outside."""


def mistakes_of(error: ValidationError, prefix: str = "") -> tuple[Mistake, ...]:
    """Return the first 100 of pydantic's errors as mistakes with the path that a person would write."""
    out = []
    for item in error.errors(include_url=False, include_context=False, include_input=False)[:_MOST]:
        path = prefix
        for part in item["loc"]:
            shown = f"[{part}]" if isinstance(part, int) else part[:_LONGEST_PART]
            path += shown if isinstance(part, int) else f".{shown}" if path else shown
        message = "this field is not known" if item["type"] == "extra_forbidden" else item["msg"]
        message = message.removeprefix("Value error, ")[:_LONGEST_MESSAGE]
        out.append(Mistake(path=path[:_LONGEST_PATH] or "(whole)", message=message))
    return tuple(out)
