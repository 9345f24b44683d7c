"""The pages. They work as plain links and forms; script makes them live."""

from fastapi import APIRouter

from hanse_dashboard.pages import compare, doors, gallery, home, jobs, nodes, onboarding, sso, steering, trail

router = APIRouter(include_in_schema=False)
for _part in (doors, sso, home, gallery, jobs, nodes, onboarding, compare, trail, steering):
    router.include_router(_part.router)

__all__ = ["router"]
