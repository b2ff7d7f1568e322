"""Routes of data that admins declare."""

from fastapi import APIRouter

from trainmaster_dispatcher.api.declared import add_routes

router = APIRouter(prefix="/v1", tags=["datasets"])
add_routes(router, "datasets")
