"""The small pages: models, tokens, health, metrics, and what is not there."""

from __future__ import annotations

import pytest

from tests.fakes.http_face import faced

pytestmark = pytest.mark.medium


async def test_the_model_has_a_card() -> None:
    async with faced() as (_, client):
        listed = (await client.get("/v1/models")).json()
        [card] = listed["data"]
        assert listed["object"] == "list"
        assert card.pop("created") > 1_700_000_000
        assert card == {
            "id": "tiny-v4",
            "object": "model",
            "owned_by": "disagg",
            "root": "tiny-v4",
            "parent": None,
            "max_model_len": 4096,
        }
        assert (await client.get("/v1/models/tiny-v4")).json()["id"] == "tiny-v4"
        missing = await client.get("/v1/models/org/other")
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "model_not_found")


async def test_text_to_tokens_and_back() -> None:
    async with faced() as (door, client):
        done = (await client.post("/tokenize", json={"prompt": "ROMEO:"})).json()
        ids = door.balancer.codec.encode_text("ROMEO:")
        assert done == {"count": len(ids), "max_model_len": 4096, "tokens": ids}
        body = {"messages": [{"role": "user", "content": "Hi"}]}
        chat = (await client.post("/tokenize", json=body)).json()
        assert chat["tokens"][-1] == 6
        back = await client.post("/detokenize", json={"tokens": ids})
        assert back.json() == {"prompt": "ROMEO:"}
        for path, bad, param in (
            ("/tokenize", {}, "prompt"),
            ("/tokenize", {"prompt": ""}, "prompt"),
            ("/detokenize", {}, "tokens"),
            ("/detokenize", {"tokens": [5000]}, "token_ids[0]"),
            ("/detokenize", {"tokens": "x"}, "tokens"),
        ):
            done = await client.post(path, json=bad)
            assert (done.status_code, done.json()["error"]["param"]) == (400, param)
        done = await client.post("/tokenize", json={"prompt": "x", "model": "gpt"})
        assert done.status_code == 404


async def test_health_is_not_readiness() -> None:
    async with faced() as (door, client):
        for path in ("/health", "/ping"):
            done = await client.get(path)
            assert (done.status_code, done.content) == (200, b"")
        done = await client.get("/ready")
        assert (done.status_code, done.text) == (503, "not ready\n")
        await door.balancer.host.health.report(True, "ok")
        assert (await client.get("/ready")).status_code == 200
        await door.balancer.host.begin_drain()
        assert (await client.get("/ready")).text == "draining\n"
        assert (await client.get("/health")).status_code == 200


async def test_metrics_and_version() -> None:
    async with faced() as (_, client):
        await client.post("/v1/completions", json={"prompt": "x"})
        done = await client.get("/metrics")
        assert done.headers["content-type"].startswith("text/plain; version=0.0.4")
        labels = 'endpoint="completions",model_name="",outcome="length",reason=""'
        line = f"disagg_requests_total{{{labels}}} 1.0"
        assert line in done.text.splitlines()
        assert 'http_route="/v1/completions"' in done.text
        assert (await client.get("/version")).json() == {"version": "test"}


async def test_what_is_not_there_is_an_error_object() -> None:
    async with faced() as (_, client):
        for method, path, status in (
            ("GET", "/v1/embeddings", 404),
            ("GET", "/v1/completions", 405),
            ("POST", "/health", 405),
        ):
            done = await client.request(method, path)
            assert done.status_code == status
            code = {404: "not_found", 405: "method_not_allowed"}[status]
            assert done.json()["error"]["code"] == code
            assert done.json()["error"]["type"] == "invalid_request_error"
            assert path in done.json()["error"]["message"]
