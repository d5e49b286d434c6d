"""Test the responses to refused requests."""

import asyncio
import json
from typing import Any

import pytest

pytest.importorskip("starlette")

from starlette.exceptions import HTTPException
from starlette.requests import Request

from detlite.apps.serve.requests import Refusal, error_response


def respond(error: Any) -> tuple[Any, dict[str, Any]]:
    scope = {"type": "http", "method": "PUT", "path": "/predict", "headers": [],
             "query_string": b"", "server": ("localhost", 80), "scheme": "http"}  # fmt: skip
    response = asyncio.run(error_response(Request(scope), error))
    return response, json.loads(response.body)


def test_problem_and_remedy():
    response, content = respond(Refusal(503, "the server is full"))
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    assert (content["error"], content["status"]) == ("the server is full", 503)
    assert "Retry-After" in content["what_to_do"]
    response, content = respond(Refusal(422, "threshold is 2", "use a number up to 1"))
    assert "retry-after" not in response.headers
    assert content["what_to_do"] == "use a number up to 1"


def test_errors_of_routes_name_the_routes():
    _, content = respond(HTTPException(405))
    assert content["error"] == "PUT /predict: Method Not Allowed"
    assert content["what_to_do"].startswith("POST an image to /predict")


def test_long_problems_are_shortened():
    _, content = respond(Refusal(500, 600 * "x"))
    assert content["error"] == 500 * "x" + " ..."
