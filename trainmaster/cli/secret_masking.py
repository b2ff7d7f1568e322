"""Texts without the secrets in them: known ones wherever they stand, others by their form. Pure."""

import re
from collections.abc import Iterable
from urllib.parse import quote

MASK = "[masked]"
_SHORTEST = 6
"""A shorter text would be found in words."""
_NAMED = r"pass(?:word|wd)?|secret|token|credential|api[-_ ]?key|access[-_ ]?key|private[-_ ]?key|client[-_ ]?secret"
_NAMED_VALUE = re.compile(
    rf"([\w-]*(?:{_NAMED})[\w-]*(\\?[\"'])?\s*[:=]\s*)"
    r"(\\\"(?:[^\"\\]|\\[^\"])*\\\"|\"(?:[^\"\\]|\\.)*\"|'[^']*'|[^\s,;&{}\[\]\"'\\]+)",
    re.IGNORECASE,
)
"""A value behind a name that secrets have, in JSON, in JSON within a text of JSON, and as programs write options."""
_FORMS = (
    (re.compile(r"tmk_[A-Za-z0-9_-]+"), MASK),
    (re.compile(r"eyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*"), MASK),
    (re.compile(r"([a-z][a-z0-9+.-]*://)[^\s/@\"']+@", re.IGNORECASE), rf"\1{MASK}@"),
    (re.compile(r"\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]+", re.IGNORECASE), rf"\1 {MASK}"),
    (re.compile(r"(\"(?:env|environment|stringData|data)\"\s*:\s*)\{[^{}]*\}"), r"\1{}"),
    (re.compile(r"-----BEGIN [A-Z ]+-----.*?(?:-----END [A-Z ]+-----|\Z)", re.DOTALL), MASK),
)
_PLAIN_VALUE = re.compile(r"[0-9]{1,15}(\.[0-9]+)?[a-zA-Z%]{0,3}|true|false|yes|no|on|off", re.IGNORECASE)


def masked(text: str, secrets: Iterable[str] = ()) -> str:
    """Return ``text`` without ``secrets``, as they are and as they stand in addresses, and without what has the form of a secret."""
    forms = {form for secret in secrets if len(secret) >= _SHORTEST for form in (secret, quote(secret, safe=""))}
    for form in sorted(forms, key=len, reverse=True):
        text = text.replace(form, MASK)
    for pattern, replacement in _FORMS:
        text = pattern.sub(replacement, text)
    return _NAMED_VALUE.sub(_mask_value, text)


def _mask_value(found: "re.Match[str]") -> str:
    """Return a name with its value masked, in the quotes that it had, so that JSON stays JSON."""
    name, quote_of_name, value = found.groups()
    mark = next((mark for mark in ('\\"', '"', "'") if value.startswith(mark)), quote_of_name or "")
    return f"{name}{mark}{MASK}{mark}"


def masked_setting(value: str) -> str:
    """Return a setting's value if it is a number, a duration or a switch, else only that it is set."""
    return value if _PLAIN_VALUE.fullmatch(value) else "(set)"
