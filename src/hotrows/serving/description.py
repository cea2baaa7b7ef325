"""What a server expects and answers, for clients: its fields, with an example, and OpenAPI."""

from __future__ import annotations

from typing import Any

from hotrows.data.columns.described import described
from hotrows.serving.scorer import Scorer
from hotrows.version import VERSION

_TYPES: dict[str, Any] = {
    "number": {"type": ["number", "null"]},
    "id": {"type": ["string", "integer", "null"]},
    "time": {"type": ["string", "integer", "null"]},
    "user": {"type": ["string", "integer", "null"]},
    "numbers": {"type": ["array", "null"], "items": {"type": "number"}},
    "ids": {"type": ["array", "null"], "items": {"type": ["string", "integer"]}},
}
_SCORE = (
    "A list of rows, or an object of `rows` and `shared`, which has the fields that all rows have in "
    "common. A row is an object of fields; one that is left out or null is missing."
)


def schema_of(scorer: Scorer) -> dict[str, Any]:
    """The answer of GET /schema: the fields that requests have, what the scores are, and a request."""
    requests, names = scorer.requests, scorer.requests.names
    columns = described(
        requests.schema, requests.statistics, requests.values, names.read, requests.stored
    )
    row = {name: column.pop("example") for name, column in columns.items()}
    links = (loss.link for loss in scorer.version.calibration.losses.values())
    return {
        "columns": [
            {"name": name, **column, "required": name in names.required}
            for name, column in columns.items()
        ],
        "labels": [
            {"name": name, "score": "probability" if link == "sigmoid" else "number"}
            for name, link in zip(scorer.labels, links, strict=True)
        ],
        "extra_fields": names.extra,
        "example": {"rows": [row]},
    }


def openapi_of(scorer: Scorer, most_rows: int) -> dict[str, Any]:
    """The answer of GET /openapi.json; most_rows: of a request."""
    described = schema_of(scorer)
    row = {
        "type": "object",
        "properties": {column["name"]: _TYPES[column["kind"]] for column in described["columns"]},
        "additionalProperties": scorer.requests.names.extra == "ignore",
    }
    a_row = {"$ref": "#/components/schemas/Row"}
    rows = {"type": "array", "items": a_row, "minItems": 1, "maxItems": most_rows}
    with_shared: dict[str, Any] = {
        "type": "object",
        "properties": {"rows": rows, "shared": a_row},
        "required": ["rows"],
    }
    with_shared["additionalProperties"] = False
    numbers = {"type": "array", "items": {"type": ["number", "array"]}}
    words = {"type": "array", "items": {"type": "string"}}
    answer = {"labels": words, "scores": numbers, "units": words, "contributions": {"type": "array"}}
    body = {"schema": {"oneOf": [rows, with_shared]}, "example": described["example"]}
    explain = {"name": "contributions", "in": "query", "schema": {"type": "boolean", "default": False}}
    explain["description"] = "What each field adds to the score: its output less that without the field."
    scores = {"type": "object", "properties": answer, "required": ["labels", "scores"]}
    post = _operation("Score rows", scores)
    post |= {"description": _SCORE, "parameters": [explain]}
    post["requestBody"] = {"required": True, "content": {"application/json": body}}
    for status, text in _REFUSED.items():
        refused = {"application/json": {"schema": {"$ref": "#/components/schemas/Refused"}}}
        post["responses"][status] = {"description": text, "content": refused}
    detail = {"type": "object", "properties": {"detail": {"type": "string"}}, "required": ["detail"]}
    anything = {"type": "object"}
    health = _operation("Whether requests are accepted", anything)
    health["responses"]["503"] = {"description": "the server is about to end, or cannot score"}
    return {
        "openapi": "3.1.0",
        "info": {"title": f"Scores of {', '.join(scorer.labels)} (hotrows)", "version": VERSION},
        "paths": {
            "/score": {"post": post},
            "/schema": {"get": _operation("The fields of a request, with an example", anything)},
            "/healthz": {"get": health},
            "/metrics": {"get": _operation("Counts and times for Prometheus", None)},
        },
        "components": {"schemas": {"Row": row, "Refused": detail}},
    }


_REFUSED = {
    "400": "the body is neither JSON nor Arrow",
    "413": "the request is too large",
    "415": "the body has another type or encoding",
    "422": "the rows cannot be scored; `detail` names the value",
    "503": "the server has more to do than it can; Retry-After says when to try again",
}


def _operation(summary: str, schema: dict[str, Any] | None) -> dict[str, Any]:
    content = {"text/plain": {}} if schema is None else {"application/json": {"schema": schema}}
    return {"summary": summary, "responses": {"200": {"description": "the answer", "content": content}}}
