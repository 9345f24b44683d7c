"""The REST API, version 1: the same questions as the pages ask, for programs."""

from fastapi import APIRouter

from hanse_dashboard.api import actions, federation, gallery, jobs, nodes
from hanse_dashboard.faults import Fault

_FAULTS: dict[int | str, dict[str, object]] = {
    400: {"model": Fault, "description": "The request cannot be done as asked."},
    401: {"model": Fault, "description": "No token, or one that is no longer good."},
    403: {"model": Fault, "description": "The role does not reach; the sentence names the one that does."},
    404: {"model": Fault, "description": "There is no such thing."},
    409: {"model": Fault, "description": "The thing's state does not allow it."},
    422: {"model": Fault, "description": "A parameter is malformed."},
    503: {"model": Fault, "description": "The ledger or the coordinator does not answer."},
}

router = APIRouter(prefix="/api/v1", responses=_FAULTS)
router.include_router(federation.router)
router.include_router(jobs.router)
router.include_router(nodes.router)
router.include_router(gallery.router)
router.include_router(actions.router)

__all__ = ["router"]
