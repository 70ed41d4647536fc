"""The description of the HTTP API at /openapi.json, request bodies included. Called by the server.

Bodies are parsed from raw bytes, past FastAPI, so their schemas are put in here.
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from echo2.runtime.transport import messages as m

_REF = "#/components/schemas/"


def body_of(kind: type[m.Message]) -> dict[str, Any]:
    """`openapi_extra` of a route that takes a message."""
    schema = {"$ref": _REF + kind.__name__}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def describe(app: FastAPI, bodies: list[type[m.Message]]) -> None:
    """Make the app describe itself with the schemas of `bodies` among its components."""

    def schema() -> dict[str, Any]:
        if app.openapi_schema is None:
            made = get_openapi(
                title=app.title, version=app.version, description=app.description, routes=app.routes
            )
            _, definitions = models_json_schema(
                [(kind, "validation") for kind in bodies], ref_template=_REF + "{model}"
            )
            components = made.setdefault("components", {})
            components.setdefault("schemas", {}).update(definitions.get("$defs", {}))
            components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
            app.openapi_schema = made
        return app.openapi_schema

    app.openapi = schema  # type: ignore[method-assign]
