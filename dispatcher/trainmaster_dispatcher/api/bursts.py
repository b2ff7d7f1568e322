"""Routes of burst policies."""

from typing import Any

from fastapi import APIRouter, Request, Response

from trainmaster.protocol import answers
from trainmaster.protocol.base import Strict
from trainmaster.protocol.bursting import BurstPolicySpec, Previews
from trainmaster_dispatcher.api.context import Admin, App, Person, State, answer, read_model
from trainmaster_dispatcher.api.declared import DeclaredKind
from trainmaster_dispatcher.api.openapi import contract
from trainmaster_dispatcher.services import bursting, leader_queries
from trainmaster_dispatcher.store.keys import Caller

router = APIRouter(prefix="/v1", tags=["burst"])


class PreviewSpec(Strict):
    """Policies to be tried without making them."""

    policies: tuple[BurstPolicySpec, ...] = ()


@router.get("/burst-policies", **contract(gives=answers.BurstPolicyList))
async def list_burst_policies(state: App, caller: Person) -> Response:
    """Burst policies of the caller's queues, with what is at public clusters by them and how their budgets stand."""
    return answer(await leader_queries.policies(state.stores, state.leader, caller))


@router.post("/burst-policies/preview", **contract(takes=PreviewSpec, is_optional=True, gives=Previews))
async def preview_burst_policies(request: Request, state: App, _caller: Admin) -> Response:
    """What would go to public clusters now, where, at what price, and what does not and why. Changes nothing."""
    spec = read_model(PreviewSpec, await request.body() or b"{}")
    return answer(await leader_queries.preview(state.stores, state.leader, spec.policies))


async def _every(state: State, caller: Caller) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await leader_queries.policies(state.stores, state.leader, caller))["burstPolicies"]
    return found


DeclaredKind(
    name="burst policy",
    address="/burst-policies",
    spec=BurstPolicySpec,
    view=answers.BurstPolicyView,
    every=_every,
    put=bursting.put_policy,
    delete=bursting.delete_policy,
    shows="One burst policy.",
    puts="Make or change a burst policy. What runs by it goes on as it was.",
    deletes="Remove a burst policy. What runs by it goes on; nothing more goes.",
).add_routes(router)
