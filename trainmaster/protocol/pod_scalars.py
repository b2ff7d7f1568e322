"""Scalars of a pod template: texts, names, labels, numbers and quantities. It knows no fields, only the types that they have."""

import ipaddress
import re
from collections.abc import Callable
from functools import partial

from trainmaster.protocol.json_limits import JsonNode, shown
from trainmaster.protocol.quantities import parse_quantity

_LONGEST_QUANTITY = 64
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_PORT_NAME = re.compile(r"(?=.*[a-z])[a-z0-9](-?[a-z0-9])*")
_LONGEST_NAME, _LONGEST_PORT_NAME = 253, 15
_MOST_ANNOTATIONS = 256 * 1024
RANGES = {
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "natural": (0, 2**31 - 1),
    "positive": (1, 2**31 - 1),
    "port": (1, 65535),
    "weight": (1, 100),
    "uid": (0, 2**31 - 1),
    "mode": (0, 0o777),
}


def _text(node: JsonNode, *, empty: bool = False) -> str | None:
    text = node.text()
    if text is None:
        return None
    if not text and not empty:
        node.refuse("must not be empty")
        return None
    return None if _is_no_utf8(node, text) else text


def _is_no_utf8(node: JsonNode, text: str) -> bool:
    if text.isascii():
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        node.refuse("must be text that can be encoded as UTF-8")
        return True
    return False


def check_word(node: JsonNode, words: list[str], *, empty: bool) -> None:
    """Check a word; an empty one is the same as none to Kubernetes, where it may be left out."""
    text = node.text()
    if text is not None and text not in words and (text or not empty):
        node.refuse(f"must be one of {', '.join(words)}, not {shown(text)}")


def check_whole(node: JsonNode, least: int, most: int) -> None:
    number = node.whole()
    if number is not None and not least <= number <= most:
        node.refuse(f"must be a whole number from {least} to {most}")


def _matching(node: JsonNode, pattern: re.Pattern[str], most: int, what: str, *, empty: bool = False) -> None:
    text = node.text()
    if text is None or (empty and not text):
        return
    if len(text) > most or not pattern.fullmatch(text):
        node.refuse(f"must be {what}, not {shown(text)}")


_label = partial(
    _matching, pattern=_LABEL, most=63, what="1 to 63 of a-z, 0-9 and '-' that neither begin nor end with '-'"
)
_name = partial(_matching, pattern=_NAME, most=_LONGEST_NAME, what="a name of an object of Kubernetes", empty=True)
check_label_value = partial(
    _matching,
    pattern=_LABEL_NAME,
    most=63,
    what="a label value: up to 63 of A-Z, a-z, 0-9, '-', '_' and '.'",
    empty=True,
)
_port_name = partial(
    _matching,
    pattern=_PORT_NAME,
    most=_LONGEST_PORT_NAME,
    what="up to 15 of a-z, 0-9 and '-' with a letter",
    empty=True,
)


def is_label_key(text: str) -> bool:
    domain, slash, name = text.rpartition("/")
    is_name = len(name) <= 63 and _LABEL_NAME.fullmatch(name) is not None
    return is_name and (not slash or (len(domain) <= _LONGEST_NAME and _NAME.fullmatch(domain) is not None))


def check_label_key(node: JsonNode) -> None:
    text = node.text()
    if text is not None and not is_label_key(text):
        node.refuse(f"must be a label key such as example.com/name, not {shown(text)}")


def check_labels(node: JsonNode) -> None:
    for key, value in node.entries():
        if not is_label_key(key):
            value.refuse("is not a label key such as example.com/name")
        value.must_be_text()
        if isinstance(value.value, str):
            check_label_value(value)


def check_annotations(node: JsonNode) -> None:
    size = 0
    for key, value in node.entries():
        if not is_label_key(key.lower()):
            value.refuse("is not a key such as example.com/name")
        value.must_be_text()
        if isinstance(value.value, str) and not _is_no_utf8(value, value.value):
            size += len(key) + len(value.value.encode())
    if size > _MOST_ANNOTATIONS:
        node.refuse(f"must have at most {_MOST_ANNOTATIONS} bytes together")


def _texts(node: JsonNode) -> None:
    for key, value in node.entries():
        _is_no_utf8(value, key)
        value.must_be_text()
        _text(value, empty=True)


def _resources(node: JsonNode) -> None:
    """Check the names of resources; ``pod_requests.py`` checks the amounts."""
    for name, value in node.entries():
        if not is_label_key(name):
            value.refuse("is not the name of a resource, such as cpu or nvidia.com/gpu")


def _quantity(node: JsonNode) -> None:
    value = node.value
    text = (
        str(value) if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**63 else value
    )
    if not isinstance(text, str) or len(text) > _LONGEST_QUANTITY:
        node.refuse(f"must be a quantity such as 500m or 4Gi, not {shown(value)}")
        return
    try:
        parse_quantity("", text)
    except ValueError as error:
        node.refuse(str(error).encode("utf-8", "replace").decode())


def _quantities(node: JsonNode) -> None:
    _resources(node)
    for _, value in node.entries():
        _quantity(value)


def _port(node: JsonNode) -> None:
    if isinstance(node.value, str):
        _port_name(node)
        if not node.value:
            node.refuse("must be a port's number or name")
    else:
        check_whole(node, 1, 65535)


def _environment_name(node: JsonNode) -> None:
    text = node.text()
    if text is not None and not (text.isascii() and text.isprintable() and text and "=" not in text):
        node.refuse(f"must be printable ASCII without '=', not {shown(text)}")


def _address(node: JsonNode) -> None:
    text = node.text()
    if text is None:
        return
    try:
        if ipaddress.ip_address(text).compressed != text.lower():
            node.refuse("must be an IP address in its usual form")
    except ValueError:
        node.refuse(f"must be an IP address, not {shown(text)}")


def _image(node: JsonNode) -> None:
    text = _text(node)
    if text is not None and text != text.strip():
        node.refuse("must not begin or end with a space")


def _search_domain(node: JsonNode) -> None:
    text = node.text()
    if text is not None and text != ".":
        plain = text.removesuffix(".").replace("_", "-")
        if len(plain) > _LONGEST_NAME or not _NAME.fullmatch(plain.strip("-")):
            node.refuse(f"must be the name of a domain, not {shown(text)}")


SCALARS: dict[str, Callable[[JsonNode], object]] = {
    "any": lambda node: None,
    "str": _text,
    "text": partial(_text, empty=True),
    "bool": JsonNode.flag,
    "label": _label,
    "name": _name,
    "labelkey": check_label_key,
    "labelvalue": check_label_value,
    "portname": _port_name,
    "labels": check_labels,
    "annotations": check_annotations,
    "{str}": _texts,
    "resources": _resources,
    "quantity": _quantity,
    "{quantity}": _quantities,
    "intstr": _port,
    "env": _environment_name,
    "image": _image,
    "domain": _search_domain,
    "ip": _address,
}
