"""Objects of Kubernetes in protobuf: decoded as JSON has them, whatever they hold, and refused where they are damaged or unknown."""

import base64
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.protocol.errors import Code, ProblemError
from trainmaster_dispatcher.api.kube import protobuf
from trainmaster_dispatcher.api.kube.bodies import read_object, read_options
from trainmaster_dispatcher.api.kube.protobuf import Field

FIELDS = protobuf._messages()
SPECIAL = {"Quantity", "Time", "MicroTime", "IntOrString", "FieldsV1", "RawExtension"}
SCALARS = {"", "int", "bool", "double", "bytes", "-"}
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)


# -- an encoder of its own, by the rules of the wire format


def varint(number: int) -> bytes:
    number %= 2**64
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*out, number))


def part(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def encoded(number: int, kind: str, value: Any) -> bytes:
    match kind:
        case "":
            return part(number, value.encode())
        case "int" | "bool":
            return varint(number << 3) + varint(int(value))
        case "double":
            return varint(number << 3 | 1) + struct.pack("<d", value)
        case "bytes":
            return part(number, base64.b64decode(value))
        case "Quantity":
            return part(number, part(1, value.encode()))
        case "IntOrString":
            body = varint(8) + varint(0) + varint(16) + varint(value) if isinstance(value, int) else b""
            return part(number, body or varint(8) + varint(1) + part(3, value.encode()))
        case _:
            return part(number, message(kind, value))


def message(name: str, value: dict[str, Any]) -> bytes:
    out = b""
    for number, field in FIELDS[name].items():
        if not field.name:
            own = {one.name for one in FIELDS[field.type].values()}
            out += part(number, message(field.type, {key: one for key, one in value.items() if key in own}))
        elif field.name not in value:
            continue
        elif field.is_map:
            for key, one in value[field.name].items():
                out += part(number, part(1, key.encode()) + encoded(2, field.type, one))
        else:
            for one in value[field.name] if field.is_list else [value[field.name]]:
                out += encoded(number, field.type, one)
    return out


def whole(version: str, kind: str, body: bytes) -> bytes:
    return b"k8s\0" + part(1, part(1, version.encode()) + part(2, kind.encode())) + part(2, body)


# -- random objects


def values(field: Field, depth: int) -> st.SearchStrategy[Any]:
    match field.type:
        case "":
            return TEXT.filter(bool)
        case "int":
            return st.integers(-(2**31), 2**31 - 1).filter(bool)
        case "bool":
            return st.just(True)
        case "double":
            return st.just(0.5)
        case "bytes":
            return st.binary(min_size=1, max_size=4).map(lambda data: base64.b64encode(data).decode())
        case "Quantity":
            return st.sampled_from(["1", "250m", "4Gi"])
        case "IntOrString":
            return st.one_of(st.integers(1, 65_535), TEXT.filter(bool))
        case _:
            return objects(field.type, depth + 1)


@st.composite
def objects(draw: st.DrawFn, name: str, depth: int = 0) -> dict[str, Any]:
    """Return an object that has some fields of a message, none with the value that a missing one has."""
    found: dict[str, Any] = {}
    for field in FIELDS[name].values():
        if field.type in ("-", "Time", "MicroTime", "FieldsV1", "RawExtension") or not draw(st.booleans()):
            continue
        if depth > 3 and field.type not in SCALARS | SPECIAL:
            continue
        if not field.name:
            found |= draw(objects(field.type, depth + 1))
        elif field.is_map:
            found[field.name] = draw(st.dictionaries(TEXT, values(field, depth), min_size=1, max_size=2))
        elif field.is_list:
            found[field.name] = draw(st.lists(values(field, depth), min_size=1, max_size=2))
        elif one := draw(values(field, depth)):
            found[field.name] = one
    return found


@given(objects("PodTemplateSpec"))
def test_a_template_is_what_was_encoded(template: dict[str, Any]) -> None:
    spec = {"template": template} if template else {}
    body = whole("batch/v1", "Job", message("Job", {"spec": spec} if spec else {}))
    expected = {"apiVersion": "batch/v1", "kind": "Job"} | ({"spec": spec} if spec else {})
    assert protobuf.decode(body) == expected


def code_of(body: bytes) -> Code | None:
    try:
        protobuf.decode(body)
    except ProblemError as error:
        return error.code
    return None


@given(st.binary(max_size=200))
def test_damaged_bytes_are_refused_with_a_sentence(data: bytes) -> None:
    for body in (data, b"k8s\0" + data, whole("v1", "Pod", data)):
        assert code_of(body) in (None, Code.MALFORMED_BODY, Code.UNSUPPORTED_MEDIA_TYPE)


def test_every_type_of_a_field_is_known() -> None:
    assert len(FIELDS) > 100
    for name, fields in FIELDS.items():
        for field in fields.values():
            assert field.type in SCALARS | SPECIAL | FIELDS.keys(), (name, field)


def test_values_that_a_missing_field_has_are_left_out_and_set_ones_kept() -> None:
    job = {
        "metadata": {"name": "a", "namespace": ""},
        "spec": {"parallelism": 0, "suspend": False, "template": {"spec": {}}},
    }
    found = protobuf.decode(whole("batch/v1", "Job", message("Job", job)))
    assert found["metadata"] == {"name": "a"}
    assert found["spec"] == {"parallelism": 0, "suspend": False}
    pod = {"spec": {"volumes": [{"name": "v", "emptyDir": {}}]}}
    assert protobuf.decode(whole("v1", "Pod", message("Pod", pod)))["spec"] == pod["spec"]


def test_times_and_packed_numbers_are_read() -> None:
    metadata = part(8, varint(8) + varint(1_700_000_000)) + part(9, b"")
    found = protobuf.decode(whole("v1", "Pod", part(1, metadata)))
    assert found["metadata"] == {"creationTimestamp": "2023-11-14T22:13:20Z"}
    context = part(4, varint(1000) + varint(2000)) if FIELDS["PodSecurityContext"][4].is_list else b""
    found = protobuf.decode(whole("v1", "Pod", part(2, part(14, context))))
    assert found["spec"]["securityContext"] == {"supplementalGroups": [1000, 2000]}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{}", "does not begin with"),
        (whole("v1", "Pod", part(99, b"x")), "field 99 of Pod is not known here"),
        (whole("v1", "Pod", b"\x0a\x05a"), "it ends too early"),
        (whole("v1", "Pod", b"\xff" * 11), "a number has too many bytes"),
        (whole("v1", "Pod", b"\x0b"), "wire type 3 is not known"),
        (whole("v1", "Pod", varint(1 << 3) + varint(3)), "bytes were expected"),
    ],
)
def test_what_is_wrong_is_said(body: bytes, words: str) -> None:
    with pytest.raises(ProblemError, match=words) as caught:
        protobuf.decode(body)
    assert caught.value.code is Code.MALFORMED_BODY


def test_other_kinds_are_read_as_json_only() -> None:
    with pytest.raises(ProblemError, match="application/json") as caught:
        read_object(whole("apps/v1", "Deployment", b""), protobuf.MEDIA_TYPE)
    assert caught.value.code is Code.UNSUPPORTED_MEDIA_TYPE


def test_options_of_a_deletion_are_read() -> None:
    body = whole("batch/v1", "DeleteOptions", message("DeleteOptions", {"gracePeriodSeconds": 0, "dryRun": ["All"]}))
    assert read_options(body) == {
        "apiVersion": "batch/v1",
        "kind": "DeleteOptions",
        "gracePeriodSeconds": 0,
        "dryRun": ["All"],
    }
