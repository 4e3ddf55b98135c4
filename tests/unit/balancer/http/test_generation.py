"""Both endpoints over a real socket, in front of scripted members."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from structlog.testing import capture_logs

from balancer.http.generation import CHAT, COMPLETIONS, system_fingerprint
from runtime.errors import Bug, Overloaded, Reason, Unavailable
from tests.fakes.front_door import PROMPT, FrontDoor
from tests.fakes.http_face import faced
from tests.fakes.members import Script, answer

pytestmark = pytest.mark.medium

MESSAGES = [{"role": "user", "content": "Hi"}]
BODIES = [
    pytest.param(COMPLETIONS, {"prompt": PROMPT, "max_tokens": 6}, id="completion"),
    pytest.param(CHAT, {"messages": MESSAGES, "max_tokens": 6}, id="chat"),
]


def events_of(text: str) -> list[Any]:
    """The events of a stream; checks its grammar."""
    assert text.endswith("\n\n")
    lines = text[:-2].split("\n\n")
    assert all(line.startswith(("data: ", ":")) and "\n" not in line for line in lines)
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    return [json.loads(item) if item != "[DONE]" else item for item in data]


def text_of(door: FrontDoor, prompt: list[int], num_tokens: int) -> str:
    return door.balancer.codec.decode(answer(prompt, num_tokens))


@pytest.mark.parametrize(("path", "body"), BODIES)
async def test_whole_and_streamed_say_the_same(path: str, body: dict[str, Any]) -> None:
    async with faced() as (door, client):
        done = await client.post(path, json=body, headers={"x-request-id": "r1"})
        assert done.status_code == 200
        whole = done.json()
        sent = list(door.prefills[0].calls[0].token_ids)
        [choice] = whole["choices"]
        text = choice["message"]["content"] if path == CHAT else choice["text"]
        assert text == text_of(door, sent, 6)
        assert choice["finish_reason"] == "length"
        assert whole["id"].endswith("cmpl-r1")
        assert done.headers["x-request-id"] == done.headers["x-disagg-decision-id"] == "r1"
        options = {"stream": True, "stream_options": {"include_usage": True}}
        stream = await client.post(path, json={**body, **options})
        assert stream.headers["content-type"].startswith("text/event-stream")
        *chunks, usage, end = events_of(stream.text)
        assert end == "[DONE]"
        assert (usage["choices"], usage["usage"]) == ([], whole["usage"])
        pieces = [chunk["choices"][0] for chunk in chunks]
        parts = [p["delta"].get("content", "") if path == CHAT else p["text"] for p in pieces]
        assert "".join(parts) == text
        assert [p["finish_reason"] for p in pieces] == [None] * (len(pieces) - 1) + ["length"]
        assert whole["usage"]["completion_tokens"] == 6
        assert whole["usage"]["prompt_cache_hit_tokens"] == 2


async def test_events_leave_as_tokens_come() -> None:
    async with faced() as (door, client):
        door.decodes[0].scripts.append(Script(hang=True, after_tokens=2))
        body = {"prompt": PROMPT, "max_tokens": 6, "stream": True}
        async with client.stream("POST", COMPLETIONS, json=body) as stream:
            lines = stream.aiter_lines()
            first = json.loads((await anext(lines)).removeprefix("data: "))
            assert first["choices"][0]["text"]
            await asyncio.wait_for(door.decodes[0].reached.wait(), 10)
        # Leaving the block closed the connection: everything that ran for it is taken back.
        await door.settle()
        assert door.decodes[0].cancelled == 1
        route = {"http_route": COMPLETIONS, "http_request_method": "POST"}
        await door.until(
            lambda: (
                door.metric(
                    "http_server_request_duration_seconds",
                    http_response_status_code="200",
                    **route,
                )
                + door.metric(
                    "http_server_request_duration_seconds",
                    http_response_status_code="499",
                    **route,
                )
                == 1
            )
        )
        assert door.metric("disagg_cancellations_total", stage="decode", origin="client") == 1


@pytest.mark.parametrize("stage", ["reserve", "prefill", "decode"])
@pytest.mark.parametrize("is_stream", [False, True])
async def test_who_leaves_at_any_stage_frees_everything(stage: str, is_stream: bool) -> None:
    async with faced() as (door, client):
        member = door.decodes[0] if stage == "decode" else door.prefills[0]
        if stage == "reserve":
            door.decodes[0].refuse = Overloaded("no slot", reason=Reason.POOL_FULL)
        else:
            member.scripts.append(Script(hang=True, after_tokens=1 if stage == "decode" else 0))
        body = {"prompt": PROMPT, "max_tokens": 6, "stream": is_stream}

        async def ask() -> None:
            async with client.stream("POST", COMPLETIONS, json=body) as stream:
                await stream.aread()

        async with asyncio.TaskGroup() as group:
            task = group.create_task(ask())
            if stage == "reserve":
                await door.until(lambda: len(door.balancer.running) == 1)
            else:
                await asyncio.wait_for(member.reached.wait(), 10)
            task.cancel()
        await door.settle()


BAD: list[tuple[str, dict[str, Any], int, str, str | None]] = [
    (COMPLETIONS, {}, 400, "invalid_value", "prompt"),
    (COMPLETIONS, {"prompt": ""}, 400, "invalid_value", "prompt"),
    (COMPLETIONS, {"prompt": [9999]}, 400, "invalid_value", "prompt[0]"),
    (COMPLETIONS, {"prompt": "x", "model": "gpt"}, 404, "model_not_found", "model"),
    (COMPLETIONS, {"prompt": "x", "n": 2}, 400, "unsupported_parameter", "n"),
    (COMPLETIONS, {"prompt": "x", "temperature": -1}, 400, "invalid_value", "temperature"),
    (COMPLETIONS, {"prompt": "x", "top_p": 0}, 400, "invalid_value", "top_p"),
    (COMPLETIONS, {"prompt": "x", "max_tokens": 5000}, 400, "context_length_exceeded", None),
    (COMPLETIONS, {"prompt": [5] * 4096}, 400, "context_length_exceeded", "prompt"),
    (COMPLETIONS, {"prompt": "x", "stop": [""]}, 400, "invalid_value", "stop[0]"),
    (COMPLETIONS, {"prompt": "x", "request_id": "a b"}, 400, "invalid_value", "request_id"),
    (CHAT, {"messages": []}, 400, "invalid_value", "messages"),
    (
        CHAT,
        {"messages": [{"role": "judge", "content": "x"}]},
        400,
        "invalid_value",
        "messages[0].role",
    ),
    (
        CHAT,
        {"messages": MESSAGES, "thinking": {"type": "enabled"}},
        400,
        "invalid_value",
        "thinking",
    ),
]


async def test_bad_bodies_are_refused_and_hurt_nobody() -> None:
    async with faced() as (door, client):
        for path, body, status, code, param in BAD:
            for stream in (False, True):
                done = await client.post(path, json={**body, "stream": stream})
                error = done.json()["error"]
                assert (done.status_code, error["code"]) == (status, code), (body, error)
                if param is not None:
                    assert error["param"] == param, body
                assert error["message"]
        for data in (b"", b"{", b"\xff", b"[]", b'{"prompt": NaN}'):
            done = await client.post(COMPLETIONS, content=data)
            assert (done.status_code, done.json()["error"]["code"]) == (400, "invalid_value")
        nan = await client.post(COMPLETIONS, content=b'{"prompt": "x", "temperature": NaN}')
        assert nan.json()["error"]["param"] == "temperature"
        assert door.prefills[0].calls == []
        assert (await client.post(COMPLETIONS, json={"prompt": "x"})).status_code == 200


async def test_limits_of_bodies() -> None:
    async with faced(http={"max_body_bytes": 100, "max_prompts": 2}) as (_, client):
        done = await client.post(COMPLETIONS, json={"prompt": "x" * 200})
        assert (done.status_code, done.json()["error"]["code"]) == (413, "request_too_large")
        done = await client.post(COMPLETIONS, json={"prompt": ["x"] * 3})
        assert done.status_code == 400


async def test_errors_before_the_first_token_have_their_status() -> None:
    async with faced(limits={"slot_wait_s": 0.0, "recovery_wait_s": 0.0}) as (door, client):
        door.decodes[0].refuse = Overloaded("no slot", reason=Reason.POOL_FULL)
        for stream in (False, True):
            body = {"prompt": "x", "stream": stream}
            done = await client.post(COMPLETIONS, json=body)
            assert (done.status_code, done.headers["retry-after"]) == (429, "1")
            assert done.json()["error"]["type"] == "rate_limit_error"
    async with faced(decodes=0) as (_, client):
        done = await client.post(COMPLETIONS, json={"prompt": "x"})
        assert (done.status_code, done.json()["error"]["code"]) == (503, "unavailable")


async def test_an_error_after_the_first_token_is_the_last_event() -> None:
    limits = {"decode_retries": 0, "recovery_wait_s": 0.0}
    async with faced(limits=limits) as (door, client):
        door.decodes[0].scripts.append(
            Script(error=Unavailable("broke", reason=Reason.STREAM_INTERRUPTED), after_tokens=2)
        )
        body = {"prompt": PROMPT, "max_tokens": 6, "stream": True}
        done = await client.post(COMPLETIONS, json=body)
        *chunks, last = events_of(done.text)
        assert done.status_code == 200
        assert chunks
        assert last["error"]["code"] == "stream_interrupted"
        assert "[DONE]" not in done.text


async def test_a_continuation_without_members_is_an_interrupted_stream() -> None:
    limits = {"suspect_s": 60.0, "recovery_wait_s": 0.0}
    async with faced(limits=limits) as (door, client):
        door.decodes[0].scripts.append(Script(error=Unavailable("gone"), after_tokens=2))
        body = {"prompt": PROMPT, "max_tokens": 6, "stream": True}
        *chunks, last = events_of((await client.post(COMPLETIONS, json=body)).text)
        assert chunks
        assert last["error"]["code"] == "stream_interrupted"
        assert "no decode member is ready" in last["error"]["message"]


async def test_a_bug_tells_nothing_but_an_incident() -> None:
    async with faced() as (door, client):
        door.prefills[0].scripts.append(Script(error=Bug("secret text")))
        with capture_logs() as logs:
            done = await client.post(COMPLETIONS, json={"prompt": "x"})
        assert [entry["event"] for entry in logs] == ["call.failed"]
        error = done.json()["error"]
        assert (done.status_code, error["code"]) == (500, "internal_error")
        assert "incident" in error["message"]
        assert "secret" not in done.text
        method = "POST /v1/completions"
        assert door.metric("disagg_internal_errors_total", method=method) == 1


async def test_several_prompts_are_several_choices() -> None:
    async with faced() as (door, client):
        prompts = [[0, 300], [0, 301], [0, 302]]
        body = {"prompt": prompts, "max_tokens": 3, "stop_token_ids": [2000]}
        done = (await client.post(COMPLETIONS, json=body)).json()
        texts = [choice["text"] for choice in done["choices"]]
        assert texts == [text_of(door, prompt, 3) for prompt in prompts]
        assert done["usage"]["total_tokens"] == 3 * (2 + 3)
        stream = await client.post(COMPLETIONS, json={**body, "stream": True})
        *chunks, _ = events_of(stream.text)
        parts = ["", "", ""]
        for chunk in chunks:
            [choice] = chunk["choices"]
            parts[choice["index"]] += choice["text"]
        assert parts == texts
        door.prefills[0].scripts.append(Script(error=Bug("x")))
        with capture_logs():
            assert (await client.post(COMPLETIONS, json=body)).status_code == 500


async def test_ids_deadlines_and_defaults() -> None:
    async with faced(http={"chat_max_tokens": 5}) as (door, client):
        done = await client.post(CHAT, json={"messages": MESSAGES, "request_id": "mine"})
        assert done.headers["x-request-id"] == "mine"
        assert done.json()["usage"]["completion_tokens"] == 5
        seed = door.prefills[0].calls[0].sampling.seed
        assert done.headers["x-disagg-seed"] == str(seed)
        done = await client.post(
            COMPLETIONS,
            json={"prompt": "x", "request_id": "body"},
            headers={"x-request-id": "header"},
        )
        assert done.headers["x-request-id"] == "header"
        assert done.json()["usage"]["completion_tokens"] == 16
        for text in ("0", "-1", "1.5", "x"):
            headers = {"x-request-timeout-ms": text}
            done = await client.post(COMPLETIONS, json={"prompt": "x"}, headers=headers)
            assert (done.status_code, done.json()["error"]["param"]) == (
                400,
                "x-request-timeout-ms",
            )
        for body, headers, param in (
            ({"prompt": "x"}, {"x-request-id": "a b"}, "x-request-id"),
            ({"prompt": ["x", []]}, {}, "prompt[1]"),
        ):
            done = await client.post(COMPLETIONS, json=body, headers=headers)
            assert (done.status_code, done.json()["error"]["param"]) == (400, param)
        for text, said in (("3600000", None), ("3600001", "3600000"), ("9" * 40, "3600000")):
            headers = {"x-request-timeout-ms": text}
            done = await client.post(COMPLETIONS, json={"prompt": "x"}, headers=headers)
            assert (done.status_code, done.headers.get("x-request-timeout-ms")) == (200, said)
        door.prefills[0].scripts.append(Script(hang=True))
        headers = {"x-request-timeout-ms": "100"}
        done = await client.post(COMPLETIONS, json={"prompt": "x"}, headers=headers)
        assert (done.status_code, done.json()["error"]["code"]) == (504, "timeout")


async def test_targets_of_the_headers_reach_placement() -> None:
    async with faced() as (door, client):
        headers = {"x-request-id": "a", "x-slo-ttft-ms": "1500", "x-slo-tpot-ms": "20"}
        done = await client.post(COMPLETIONS, json={"prompt": "x"}, headers=headers)
        assert done.status_code == 200
        [record] = door.balancer.router.decisions.explain(done.headers["x-disagg-decision-id"])
        assert (record.request.ttft_slo_s, record.request.tpot_slo_s) == (1.5, 0.02)
        done = await client.post(COMPLETIONS, json={"prompt": "x"}, headers={"x-slo-ttft-ms": "0"})
        assert (done.status_code, done.json()["error"]["param"]) == (400, "x-slo-ttft-ms")


async def test_an_id_that_runs_is_refused() -> None:
    async with faced() as (door, client):
        door.prefills[0].scripts.append(Script(hang=True))
        headers = {"x-request-id": "twice"}
        async with asyncio.TaskGroup() as group:
            first = group.create_task(
                client.post(COMPLETIONS, json={"prompt": "x"}, headers=headers)
            )
            await asyncio.wait_for(door.prefills[0].reached.wait(), 10)
            done = await client.post(COMPLETIONS, json={"prompt": "x"}, headers=headers)
            assert (done.status_code, done.json()["error"]["code"]) == (409, "duplicate_request")
            assert door.balancer.running.cancel("twice")
        assert first.result().json()["choices"][0]["finish_reason"] == "abort"


async def test_unknown_fields_are_counted_or_refused() -> None:
    body = {"prompt": "x", "colour": "blue"}
    async with faced() as (door, client):
        known = {**body, "verbosity": "low"}
        assert (await client.post(COMPLETIONS, json=known)).status_code == 200
        assert door.metric("disagg_http_unknown_fields_total", field="verbosity") == 1
        assert door.metric("disagg_http_unknown_fields_total", field="other") == 1
        # What a caller writes is no name of a series.
        assert "colour" not in door.balancer.metrics.exposition()[0].decode()
    async with faced(http={"strict_fields": True}) as (_, client):
        error = (await client.post(COMPLETIONS, json=body)).json()["error"]
        assert (error["code"], error["param"]) == ("unsupported_parameter", "colour")


async def test_logprobs_echo_and_token_ids() -> None:
    async with faced() as (door, client):
        body = {"prompt": "Hi", "max_tokens": 3, "logprobs": 1, "return_token_ids": True}
        [choice] = (await client.post(COMPLETIONS, json=body)).json()["choices"]
        sent = list(door.prefills[0].calls[0].token_ids)
        assert (choice["token_ids"], choice["prompt_token_ids"]) == (answer(sent, 3), sent)
        assert choice["logprobs"]["token_logprobs"] == [-1.0, -2.0, -3.0]
        body = {"prompt": "Hi", "max_tokens": 3, "echo": True}
        [choice] = (await client.post(COMPLETIONS, json=body)).json()["choices"]
        assert choice["text"] == "Hi" + text_of(door, sent, 3)


async def test_new_work_is_refused_while_draining() -> None:
    async with faced() as (door, client):
        door.decodes[0].scripts.append(Script(hang=True, after_tokens=1))
        body = {"prompt": PROMPT, "max_tokens": 6, "stream": True}
        async with client.stream("POST", COMPLETIONS, json=body) as stream:
            await anext(stream.aiter_lines())
            assert door.balancer.host.running == 1
            await door.balancer.host.begin_drain()
            done = await client.post(COMPLETIONS, json={"prompt": "x"})
            assert (done.status_code, done.json()["error"]["code"]) == (503, "unavailable")
            refused = {"endpoint": "completions", "outcome": "failed", "reason": "DRAINING"}
            assert door.metric("disagg_requests_total", **refused) == 1
            assert (await client.get("/ready")).status_code == 503
        await door.until(lambda: door.balancer.host.running == 0)
        await door.balancer.host.end_drain()


def test_the_fingerprint_changes_with_version_and_layout() -> None:
    values = {system_fingerprint(version, layout) for version in "ab" for layout in "cd"}
    assert len(values) == 4
    assert all(value.startswith("fp_") for value in values)
