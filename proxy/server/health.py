"""Our own pages: live and ready."""

from aiohttp import web

from proxy import codec
from proxy.compactor.memory import SessionMemory
from proxy.server.error_responses import error_response
from proxy.settings import Settings


def page(settings: Settings, memory: SessionMemory, path: str, *, draining: bool) -> web.Response:
    """Return one of our pages.

    ``live`` answers 200 while the process serves. ``ready`` answers 503 while it drains; a
    store that is down is named but does not make it unready, since requests go on without it.
    """
    if settings.admin.health and path == "/_foldgate/live":
        return _json(200, {"status": "ok"})
    if settings.admin.health and path == "/_foldgate/ready":
        store = "down" if memory.store_down else "ok"
        status = "draining" if draining else "ok"
        body: codec.JsonObject = {
            "status": status,
            "store": store,
            "pending_writes": memory.pending,
        }
        return _json(503 if draining else 200, body)
    return error_response(404, "There is no such page.", "invalid_request_error", "not_found")


def _json(status: int, body: codec.JsonObject) -> web.Response:
    return web.Response(status=status, body=codec.dumps(body), content_type="application/json")
