"""Routes of data that admins declare."""

from trainmaster_dispatcher.api.declared import add_routes
from trainmaster_dispatcher.api.openapi import documented_router

router = documented_router("/v1", "datasets")
add_routes(router, "datasets")
