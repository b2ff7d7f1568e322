"""Every hostile value in every kind of scalar and small model: taken within its bounds, or refused; never another exception."""

from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from tests.fuzz.values import LARGE, NASTY, RAW, to_json
from trainmaster.protocol.agent import StreamPush, SyncRequest
from trainmaster.protocol.base import Name24, QueuePath, Timestamp
from trainmaster.protocol.bursting import ClockTime
from trainmaster.protocol.durations import Duration
from trainmaster.protocol.ids import BadIdError, parse_job_id, parse_run_id
from trainmaster.protocol.jobs import JobSpec
from trainmaster.protocol.labels import LabelKey, LabelValue
from trainmaster.protocol.prices import Device, Factor, Money
from trainmaster.protocol.quantities import Quantity
from trainmaster.protocol.quota import FlavorName
from trainmaster.protocol.resource_kinds import KINDS
from trainmaster.protocol.scoring import Profile

SCALARS: dict[str, Any] = {
    "Duration": Duration,
    "Quantity": Quantity,
    "Money": Money,
    "Factor": Factor,
    "Device": Device,
    "FlavorName": FlavorName,
    "Name24": Name24,
    "QueuePath": QueuePath,
    "LabelKey": LabelKey,
    "LabelValue": LabelValue,
    "ClockTime": ClockTime,
    "Timestamp": Timestamp,
    "Profile": Profile,
}
MODELS: tuple[type[BaseModel], ...] = (
    JobSpec,
    *(kind.spec for kind in KINDS.values()),
    SyncRequest,
    StreamPush,
)
VALUES = NASTY | LARGE


@pytest.mark.parametrize("scalar", SCALARS)
def test_scalars_take_a_value_or_refuse_it(scalar: str) -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(SCALARS[scalar])
    for value in VALUES.values():
        try:
            found = adapter.validate_python(value)
        except ValidationError:
            continue
        assert len(str(found)) <= 400  # nothing of a megabyte is taken for a scalar


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_models_refuse_what_is_no_mapping(model: type[BaseModel]) -> None:
    for value in VALUES.values():
        with pytest.raises(ValidationError):
            model.model_validate(value)


@pytest.mark.parametrize("model", [SyncRequest, StreamPush], ids=lambda model: model.__name__)
def test_models_of_agents_refuse_raw_text_that_is_no_message(model: type[BaseModel]) -> None:
    for value in (VALUES | RAW).values():
        with pytest.raises(ValidationError):
            model.model_validate_json(to_json(value))


def test_texts_are_ids_or_are_refused() -> None:
    for value in VALUES.values():
        if isinstance(value, str):
            for parse in (parse_job_id, parse_run_id):
                with pytest.raises(BadIdError):
                    parse(value)
