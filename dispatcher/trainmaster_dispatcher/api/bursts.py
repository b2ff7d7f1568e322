"""Routes of burst policies."""

from fastapi import APIRouter, Request, Response

from trainmaster.protocol import answers
from trainmaster.protocol.base import Strict
from trainmaster.protocol.bursting import BurstPolicySpec, Previews
from trainmaster_dispatcher.api.context import Admin, App, Person, answer, read_model
from trainmaster_dispatcher.api.openapi import contract
from trainmaster_dispatcher.api.tenants import change, named, same_name
from trainmaster_dispatcher.services import bursting, leader_queries

router = APIRouter(prefix="/v1/burst-policies", tags=["burst"])


class PreviewSpec(Strict):
    """Policies to be tried without making them."""

    policies: tuple[BurstPolicySpec, ...] = ()


@router.get("", **contract(gives=answers.BurstPolicyList))
async def list_burst_policies(state: App, caller: Person) -> Response:
    """Burst policies of the caller's queues, with what is at public clusters by them and how their budgets stand."""
    return answer(await leader_queries.policies(state.stores, state.leader, caller))


@router.post("/preview", **contract(takes=PreviewSpec, is_optional=True, gives=Previews))
async def preview_burst_policies(request: Request, state: App, _caller: Admin) -> Response:
    """What would go to public clusters now, where, at what price, and what does not and why. Changes nothing."""
    spec = read_model(PreviewSpec, await request.body() or b"{}")
    return answer(await leader_queries.preview(state.stores, state.leader, spec.policies))


@router.get("/{name}", **contract(gives=answers.BurstPolicyView))
async def show_burst_policy(name: str, state: App, caller: Person) -> Response:
    """One burst policy."""
    return named(
        (await leader_queries.policies(state.stores, state.leader, caller))["burstPolicies"], name, "burst policy"
    )


@router.put("/{name}", **contract(takes=BurstPolicySpec, gives=BurstPolicySpec))
async def put_burst_policy(name: str, request: Request, state: App, caller: Admin) -> Response:
    """Make or change a burst policy. What runs by it goes on as it was."""
    spec = read_model(BurstPolicySpec, await request.body())
    same_name(spec.name, name, "burst policy")
    await change(state, caller, "put burst policy", name, lambda tx: bursting.put_policy(tx, spec))
    return answer(spec.model_dump(mode="json", by_alias=True, exclude_none=True))


@router.delete("/{name}", **contract(status=204))
async def delete_burst_policy(name: str, state: App, caller: Admin) -> Response:
    """Remove a burst policy. What runs by it goes on; nothing more goes."""
    await change(state, caller, "delete burst policy", name, lambda tx: bursting.delete_policy(tx, name))
    return Response(status_code=204)
