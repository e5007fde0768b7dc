"""/api/openapi.json, made of the declarations that the routes are made of."""

from __future__ import annotations

from typing import Any

from tunecast import __version__
from tunecast.web.api.endpoints import ENDPOINTS, Endpoint, published_takes

ERROR = {"$ref": "#/components/schemas/Error"}
ERRORS = {
    400: "the request is not what is declared here",
    401: "a token is needed (`Authorization: Bearer …`)",
    403: "not from this page: the Host or the Origin is another's",
    408: "the request took too long to arrive",
    413: "the request is too large",
    415: "the request is not JSON",
    422: "the job, model or file is refused, with the remedy",
    429: "too many requests, or all processes are busy: ask again later",
    431: "the address and headers are too large",
}
WITH_BODY = (408, 413, 415)


def document() -> dict[str, Any]:
    paths: dict[str, Any] = {each.path: {each.method.lower(): operation(each)} for each in ENDPOINTS}
    alone = {"200": _json("", {"type": "object", "required": ["status", "version"]}), **_errors(400, 403, 429, 431)}
    paths["/api/health"] = {"get": {"operationId": "health", "summary": "whether it answers", "responses": alone}}
    itself = {"200": _json("", {"type": "object", "required": ["openapi"]}), **_errors(400, 401, 403, 429, 431)}
    paths["/api/openapi.json"] = {"get": {"operationId": "openapi", "summary": "this", "responses": itself}}
    detail = {"type": "object", "required": ["code", "field", "message"], "properties": {
        "code": {"type": "string"}, "field": {"type": ["string", "null"]}, "message": {"type": "string"},
    }}  # fmt: skip
    error = {"type": "object", "required": ["error"], "properties": {"error": detail}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "tunecast", "version": __version__, "license": {"name": "Apache-2.0"}},
        "paths": paths,
        "components": {"schemas": {"Error": error}, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def operation(endpoint: Endpoint) -> dict[str, Any]:
    told: dict[str, Any] = {"operationId": endpoint.question, "summary": endpoint.summary}
    errors = [status for status in ERRORS if endpoint.method == "POST" or status not in WITH_BODY]
    told["responses"] = {"200": _answer(endpoint), **_errors(*errors)}
    takes = published_takes(endpoint)
    if endpoint.method == "POST":
        told["requestBody"] = {"required": True, "content": {"application/json": {"schema": takes}}}
    elif takes["properties"]:
        told["parameters"] = [
            {
                "name": name,
                "in": "path" if f"{{{name}}}" in endpoint.path else "query",
                "required": name in takes["required"],
                "schema": _in_query(schema),
            }
            for name, schema in takes["properties"].items()
        ]
    return told


def _answer(endpoint: Endpoint) -> dict[str, Any]:
    if endpoint.answers != "application/json":
        return {"description": endpoint.summary, "content": {endpoint.answers: {"schema": {"type": "string"}}}}
    if endpoint.is_list:
        return _json(endpoint.summary, {"type": "array", "items": {"type": "object"}})
    schema = {"type": "object", "required": ["schema"], "properties": {"schema": {"const": endpoint.schema}}}
    return _json(endpoint.summary, schema)


def _in_query(schema: Any) -> dict[str, Any]:
    """A query has no null and no lists: several names are one, separated by commas."""
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    kind = next(each for each in ("boolean", "integer", "number", "string") if each in kinds)
    left = {name: value for name, value in schema.items() if name not in ("items", "maxItems")}
    return {**left, "type": kind}


def _errors(*statuses: int) -> dict[str, Any]:
    return {str(status): _json(ERRORS[status], ERROR) for status in statuses}


def _json(description: str, schema: Any) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}
