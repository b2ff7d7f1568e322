"""Words that no message about invalid input may have: they are of Python and of its libraries, not of users."""

import re

_FORBIDDEN = re.compile(
    r"""
      \b(tuple|dict|NoneType|frozenset|pydantic|regex|regexp|pattern|Traceback|JSONDecodeError|ValidationError)\b
    | Input\ should | valid\ (tuple|integer|string|dictionary|boolean|list|number)\b | after\ validation
    | Value\ error | Assertion\ failed | Field\ required | Extra\ inputs | unable\ to\ parse
    | \[key\] | \(whole\) | \^\[ | \.\*\$ | \]\*\$ | function-(before|after|wrap) | literal\[ | \bunion\b | discriminator
    | \b[A-Z][A-Za-z]*Spec\b | <class | object\ at\ 0x | \bstr\b | \bNone\b | \bTrue\b | \bFalse\b
    """,
    re.VERBOSE,
)


def forbidden(message: str) -> str:
    """Return the first word of a message that it may not have outside of what it quotes; empty if there is none."""
    found = _FORBIDDEN.search(re.sub(r"'[^']*'|\"[^\"]*\"", "''", message))
    return found[0] if found else ""
