"""Routes of burst policies."""

from fastapi import Request, Response

from trainmaster.protocol import answers
from trainmaster.protocol.base import Strict
from trainmaster.protocol.bursting import BurstPolicySpec, Previews
from trainmaster.protocol.errors import Code
from trainmaster_dispatcher.api.context import App, PolicyReader, PolicyWriter, answer, read_large_model
from trainmaster_dispatcher.api.declared import add_routes
from trainmaster_dispatcher.api.openapi import contract, documented_router
from trainmaster_dispatcher.services import leader_queries

router = documented_router("/v1", "burst")


class PreviewSpec(Strict):
    """Policies to be tried without making them."""

    policies: tuple[BurstPolicySpec, ...] = ()
    """Policies to try, in place of those with the same names or beside them."""


@router.get("/burst-policies", **contract(gives=answers.BurstPolicyList))
async def list_burst_policies(state: App, caller: PolicyReader) -> Response:
    """List burst policies of the caller's queues, with what is at public clusters by them and what is left of their budgets."""
    return answer(await leader_queries.policies(state.stores, state.leader, caller))


@router.post(
    "/burst-policies/preview",
    **contract(
        takes=PreviewSpec,
        is_optional=True,
        gives=Previews,
        refuses=(Code.UNKNOWN_CLUSTER, Code.UNKNOWN_QUEUE, Code.UNKNOWN_PRIORITY_CLASS),
    ),
)
async def preview_burst_policies(request: Request, state: App, caller: PolicyWriter) -> Response:
    """Show what would go to public clusters now, where, at what price, and what does not and why. Changes nothing.

    Whoever may write policies for some queues tries such policies alone, and sees the jobs of these queues.
    """
    spec = await read_large_model(PreviewSpec, await request.body() or b"{}")
    return answer(await leader_queries.preview(state.stores, state.leader, caller, spec.policies))


add_routes(router, "burst")
