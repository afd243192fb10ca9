"""/v1/adapters: which LoRA adapters a request can name, one more, one less.

Knows the order of the work; what may be mounted is said in service/adapters.py.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from protocol.errors import Kind
from protocol.jobs import ListAdapters, MountAdapter, UnmountAdapter
from protocol.settings import AdapterSource
from service import headers, reply
from service.adapters import Listed, MountRequest, Told, Unmounted, told
from service.api import language
from service.api.answers import as_json
from service.chat import typed
from service.contract import KNOWN, MODEL, WORK, Contract, Outcome, Parameter, Sent, json
from service.house import House
from service.worker import Worker

OF = (Parameter("model", "query", str, "Whose adapters: the first language model's, unless it says another."),)
LISTING = Contract(
    language.GROUP, (Outcome("all that are mounted", (json(Listed),)),), failures=(*MODEL, *WORK), parameters=OF
)
MOUNT = Contract(
    language.GROUP,
    (Outcome("it is mounted", (json(Told),), headers=KNOWN),),
    failures=language.FAILURES,
    body=(Sent("application/json", MountRequest, example={"id": "pirate", "path": "pirate-v2"}),),
)
UNMOUNT = Contract(
    language.GROUP,
    (Outcome("it is gone", (json(Unmounted),)),),
    failures=(*MODEL, *WORK, Kind.UNKNOWN_ADAPTER),
    parameters=OF,
)


async def listing(house: House, request: Request) -> Response:
    llm = await _worker(house, request)
    mounted = await reply.unless_gone(request, reply.mounted(llm, ListAdapters()))
    listed: Listed = {"object": "list", "adapters": [told(adapter) for adapter in mounted.adapters]}
    return as_json(listed)


async def mount(house: House, request: Request) -> Response:
    asking = await language.read(house, request)

    def parsed() -> tuple[tuple[AdapterSource, list[str]], str]:
        fields, ignored = typed.decode(MountRequest, asking.members)
        return (fields.source(house.config.adapter_dir), ignored), fields.model

    (source, ignored), model, llm = await language.checked(house, parsed)
    mounted = await reply.unless_gone(request, reply.mounted(llm, MountAdapter(source)))
    body = next(told(adapter) for adapter in mounted.adapters if adapter.source.id == source.id)
    return as_json(body, headers=headers.known(model, ignored))


async def unmount(house: House, request: Request) -> Response:
    id = request.path_params["id"]
    llm = await _worker(house, request)
    await reply.unless_gone(request, reply.mounted(llm, UnmountAdapter(id)))
    unmounted: Unmounted = {"id": id, "object": "adapter", "deleted": True}
    return as_json(unmounted)


async def _worker(house: House, request: Request) -> Worker:
    """Of the language model that the query names; the first one, if it names none."""
    name = request.query_params.get("model", "")
    _, _, llm = await language.checked(house, lambda: (None, name))
    return llm
