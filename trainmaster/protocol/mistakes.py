"""What pydantic found wrong, as a person would point at it."""

from pydantic import ValidationError

from trainmaster.protocol.errors import Mistake


def mistakes_of(error: ValidationError, prefix: str = "") -> tuple[Mistake, ...]:
    """pydantic's errors as mistakes with the path that a person would write."""
    out = []
    for item in error.errors(include_url=False, include_context=False, include_input=False):
        path = prefix
        for part in item["loc"]:
            path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
        message = "this field is not known" if item["type"] == "extra_forbidden" else item["msg"]
        out.append(Mistake(path=path or "(whole)", message=message.removeprefix("Value error, ")))
    return tuple(out)
