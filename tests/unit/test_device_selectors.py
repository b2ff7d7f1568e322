"""CEL selectors of DeviceClasses: what an expression selects, and that nothing is guessed."""

from typing import Any

import pytest

from trainmaster_agent.capacity.device_selectors import SelectorError, device_value, scaled_quantity, selector_of

DEVICE = {
    "name": "gpu-0",
    "attributes": {
        "model": {"string": "a100"},
        "index": {"int": 3},
        "ready": {"bool": True},
        "driverVersion": {"version": "1.10.0"},
        "resource.kubernetes.io/pcieRoot": {"string": "pci0000:01"},
    },
    "capacity": {"memory": {"value": "40Gi"}, "other.example.com/slots": {"value": "500m"}},
}


def _matches(expression: str, device: dict[str, Any] = DEVICE) -> bool:
    return selector_of(expression).matches(device_value("gpu.example.com", device))


@pytest.mark.parametrize(
    "expression",
    [
        "device.driver == 'gpu.example.com'",
        'device.attributes["gpu.example.com"].model == "a100"',
        "device.attributes['gpu.example.com'].index >= 3",
        "device.attributes['gpu.example.com'].ready",
        "device.attributes['resource.kubernetes.io'].pcieRoot.startsWith('pci')",
        "device.attributes['gpu.example.com'].model in ['a100', 'h100']",
        "device.attributes['gpu.example.com'].model.matches('^a[0-9]+$')",
        "device.attributes['gpu.example.com'].model.lowerAscii() == 'a100'",
        "device.capacity['gpu.example.com'].memory.compareTo(quantity('40Gi')) == 0",
        "device.capacity['gpu.example.com'].memory.isGreaterThan(quantity('39.5Gi'))",
        "device.capacity['gpu.example.com'].memory == quantity('40960Mi')",
        "device.capacity['other.example.com'].slots.isLessThan(quantity('1'))",
        "device.attributes['gpu.example.com'].driverVersion.isGreaterThan(semver('1.9.3'))",
        "device.attributes['gpu.example.com'].driverVersion.compareTo(semver('1.10.0-rc.1')) > 0",
        "device.attributes['gpu.example.com'].driverVersion.minor() == 10",
        "!('none.example.com' in device.attributes)",
        "!has(device.attributes['none.example.com'].model)",
        "device.driver == 'gpu.example.com' || device.attributes['none.example.com'].model == 'x'",
        "!device.allowMultipleAllocations",
    ],
)
def test_a_device_satisfies(expression: str) -> None:
    assert _matches(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "device.driver == 'other.example.com'",
        "device.driver == 'other.example.com' && device.attributes['none.example.com'].model == 'x'",
        "has(device.attributes['gpu.example.com'].none)",
        "device.capacity['gpu.example.com'].memory.isGreaterThan(quantity('40Gi'))",
    ],
)
def test_a_device_does_not_satisfy(expression: str) -> None:
    assert not _matches(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "device.attributes['gpu.example.com'].none == 'x'",
        "device.attributes['none.example.com'].model == 'x'",
        "device.driver",
        "device.driver ==",
        "unknown(device.driver)",
        "device.capacity['gpu.example.com'].memory.isGreaterThan(quantity('many'))",
        "device.capacity['gpu.example.com'].memory.isGreaterThan(quantity('1n'))",
        "cel.bind(gpu, device.attributes['gpu.example.com'], gpu.model == 'a100')",
        "device.attributes['gpu.example.com'].?model.orValue('') == 'a100'",
        "device.attributes['gpu.example.com'].driverVersion.isGreaterThan(semver('1.9'))",
    ],
)
def test_what_cannot_be_evaluated_is_an_error(expression: str) -> None:
    with pytest.raises(SelectorError):
        _matches(expression)


@pytest.mark.parametrize(
    ("text", "amount"), [("1", 1000), ("500m", 500), ("2Ki", 2_048_000), ("1e3", 1_000_000), ("-1", -1000)]
)
def test_quantities_are_thousandths(text: str, amount: int) -> None:
    assert scaled_quantity(text) == amount


@pytest.mark.parametrize("text", ["", "1x", "1n", "1e300", "9" * 30])
def test_quantities_that_cannot_be_compared_exactly_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"quantity|exactly|large"):
        scaled_quantity(text)
