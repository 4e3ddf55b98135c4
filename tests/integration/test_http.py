"""A stock client against the whole system as processes: OpenAI's package, streaming and not."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator

import grpc.aio
import httpx2
import openai
import pytest

from cli.local.launcher import System
from cli.main import main
from client import AsyncClient, ChatMessage, Sampling
from disagg.facade import vllm_engine_pb2, vllm_engine_pb2_grpc
from tests.fakes.holdings import nothing_is_held
from tests.fakes.processes import ROOT
from tests.fakes.systems import launched

pytestmark = [pytest.mark.medium, pytest.mark.timeout(200)]

MODEL = "tiny-v4"
GOLDEN = json.loads((ROOT / "models" / MODEL / "golden.json").read_text(encoding="utf-8"))["cases"]
USER = "Good morrow, my gentle lord. What news from the field?"
MESSAGES = [{"role": "user", "content": USER}]


@pytest.fixture(scope="module")
def system() -> Iterator[System]:
    with launched(decode_ranks=2, http_port=0, has_traces=True) as running:
        assert running.http_address
        yield running


def stock(system: System) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=f"http://{system.http_address}/v1", api_key="none", max_retries=0, timeout=60.0
    )


async def test_golden_prompts_by_token_ids(system: System) -> None:
    async with stock(system) as client:
        answers = await asyncio.gather(
            *(
                client.completions.create(
                    model=MODEL,
                    prompt=case["input_ids"],
                    max_tokens=64,
                    temperature=0,
                    extra_body={"ignore_eos": True, "return_token_ids": True},
                )
                for case in GOLDEN[:4]
            )
        )
    for case, answer in zip(GOLDEN, answers, strict=False):
        assert answer.choices[0].token_ids == case["greedy_ids"], case["name"]
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 64
    await nothing_is_held(system)


async def test_chat_whole_and_streamed_equals_the_native_client(system: System) -> None:
    async with AsyncClient(system.address, timeout_s=60.0) as native:
        known = await native.generate(
            [ChatMessage(role="user", content=USER)],
            sampling=Sampling(temperature=0.8, seed=7, max_tokens=24, ignore_eos=True, logprobs=2),
        )
    options = {
        "model": MODEL,
        "messages": MESSAGES,
        "temperature": 0.8,
        "seed": 7,
        "max_completion_tokens": 24,
        "logprobs": True,
        "top_logprobs": 2,
        "extra_body": {"ignore_eos": True},
    }
    async with stock(system) as client:
        whole = await client.chat.completions.create(**options)
        [choice] = whole.choices
        assert choice.message.content == known.text
        assert choice.finish_reason == "length"
        assert whole.usage is not None
        assert whole.usage.completion_tokens == 24
        assert whole.usage.prompt_tokens == known.usage.prompt_tokens
        assert choice.logprobs is not None
        entries = choice.logprobs.content or []
        assert [e.logprob for e in entries] == [e.logprob for e in known.logprobs]
        named = b"".join(bytes(e.bytes or []) for e in entries).decode()
        assert re.sub(r"<｜.*?｜>", "", named) == known.text  # special tokens have no text
        assert [len(e.top_logprobs) for e in entries] == [2] * 24
        stream = await client.chat.completions.create(
            **options, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert "".join(delta.content or "" for delta in deltas) == known.text
    assert [delta.role for delta in deltas][:2] == ["assistant", None]
    usage = chunks[-1].usage
    assert usage is not None
    assert usage.completion_tokens == 24
    assert usage.prompt_tokens_details is not None
    cached = usage.prompt_tokens_details.cached_tokens or 0
    assert usage.prompt_cache_hit_tokens == cached
    assert usage.prompt_cache_miss_tokens == usage.prompt_tokens - cached
    await nothing_is_held(system)


async def test_stop_texts_and_the_models_own_end(system: System) -> None:
    async with stock(system) as client:
        whole = await client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=0)
        assert whole.choices[0].message.content == "I am a man of the LORD."
        assert whole.choices[0].finish_reason == "stop"
        cut = await client.chat.completions.create(
            model=MODEL, messages=MESSAGES, temperature=0, stop=[" of"]
        )
        assert cut.choices[0].message.content == "I am a man"
        assert cut.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("events", [0, 1, 2, 9])
async def test_leaving_after_any_event_frees_everything(system: System, events: int) -> None:
    async with stock(system) as client:
        stream = await client.completions.create(
            model=MODEL,
            prompt=GOLDEN[0]["input_ids"],
            max_tokens=2000,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        for _ in range(events):
            await anext(stream)
        await stream.close()
        await nothing_is_held(system)
        # The answer of another caller is untouched by it.
        whole = await client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=0)
        assert whole.choices[0].message.content == "I am a man of the LORD."


async def test_errors_are_the_stock_clients_own(system: System) -> None:
    async with stock(system) as client:
        with pytest.raises(openai.BadRequestError, match="temperature") as bad:
            await client.completions.create(model=MODEL, prompt="x", temperature=-1)
        assert (bad.value.code, bad.value.param) == ("invalid_value", "temperature")
        with pytest.raises(openai.NotFoundError, match="use 'tiny-v4'"):
            await client.completions.create(model="gpt", prompt="x")
        with pytest.raises(openai.BadRequestError, match="n = 1"):
            await client.completions.create(model=MODEL, prompt="x", n=2)
        assert [model.id async for model in client.models.list()] == [MODEL]


async def test_pages_for_operators(system: System) -> None:
    base = f"http://{system.http_address}"
    async with httpx2.AsyncClient(base_url=base, trust_env=False, timeout=20) as client:
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/ready")).status_code == 200
        text = (await client.get("/metrics")).text
        assert 'disagg_worker_ready{role="balancer"} 1.0' in text


BEGINNINGS = {
    "balancer": [
        *(
            'disagg_requests_total{endpoint="chat",model_name="tiny-v4",outcome="failed",'
            f'reason="{reason}"}}'
            for reason in ("NO_DECODE", "STORE_DOWN", "DRAINING", "INVARIANT_BROKEN")
        ),
        'disagg_redispatch_total{reason="peer_gone",stage="decode"}',
        'disagg_slo_requests_total{model_name="tiny-v4",tier="lt16k",verdict="failed"}',
        'disagg_internal_errors_total{method="POST /v1/chat/completions"}',
    ],
    "prefill": [
        'disagg_prefix_fallback_total{cause="corrupt_digest"}',
        'disagg_kv_checksum_failures_total{component="kv"}',
    ],
    "decode": [
        'disagg_handoff_total{outcome="corrupt"}',
        'disagg_prefetch_total{outcome="no_room"}',
    ],
}


async def test_what_did_not_happen_has_rows_at_zero(system: System) -> None:
    pages = {row.role: row.metrics for row in system.rows() if row.role in BEGINNINGS}
    assert set(pages) == set(BEGINNINGS)
    async with httpx2.AsyncClient(trust_env=False, timeout=20) as client:
        for role, address in pages.items():
            lines = (await client.get(f"http://{address}/metrics")).text.splitlines()
            found = {sorted_labels(line) for line in lines if line[:1] != "#"}
            missing = {f"{row} 0.0" for row in BEGINNINGS[role]} - found
            assert not missing, role


def sorted_labels(line: str) -> str:
    """A sample with its labels in the order of their names."""
    name, brace, rest = line.partition("{")
    labels, _, value = rest.rpartition("} ")
    parts = sorted(re.findall(r'\w+="[^"]*"', labels))
    return f"{name}{{{','.join(parts)}}} {value}" if brace else line


async def test_gateways_get_the_same_tokens(system: System) -> None:
    """The published engine interface with a raw client."""
    case = GOLDEN[0]
    request = vllm_engine_pb2.GenerateRequest(
        request_id="chatcmpl-gateway",
        tokenized={"original_text": "", "input_ids": case["input_ids"]},
        sampling_params={"temperature": 0.0, "max_tokens": 64, "ignore_eos": True},
        stream=True,
    )
    async with grpc.aio.insecure_channel(system.address) as channel:
        stub = vllm_engine_pb2_grpc.VllmEngineStub(channel)
        health = await stub.HealthCheck(vllm_engine_pb2.HealthCheckRequest(), timeout=20)
        assert health.healthy
        *chunks, last = [message async for message in stub.Generate(request, timeout=60)]
        ids = [token for message in chunks for token in message.chunk.token_ids]
        assert ids == list(last.complete.output_ids) == case["greedy_ids"]
        loads = await stub.GetLoads(vllm_engine_pb2.GetLoadsRequest(), timeout=20)
        assert len(loads.loads) == 2
        assert all(load.max_total_num_tokens > 0 for load in loads.loads)
        info = await stub.GetServerInfo(vllm_engine_pb2.GetServerInfoRequest(), timeout=20)
        assert len(bytes.fromhex(info.pairing_protocol)) == 8
        request.request_id, request.sampling_params.max_tokens = "chatcmpl-aborted", 3000
        abort = vllm_engine_pb2.AbortRequest(request_ids=["chatcmpl-aborted"])
        rest = []
        async for message in stub.Generate(request, timeout=60):
            if not rest:
                await stub.Abort(abort, timeout=20)
            rest.append(message)
        assert rest[-1].complete.finish_reason == "abort"
    await nothing_is_held(system)


async def test_the_waterfall_of_a_chat_covers_all_processes(
    system: System, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")  # a narrow terminal cuts long names
    trace_id, named = "0af7651916cd43dd8448eb211c80319c", "traced-chat"
    async with stock(system) as client:
        stream = await client.chat.completions.create(
            model=MODEL,
            messages=MESSAGES,  # type: ignore[arg-type]
            max_tokens=12,
            stream=True,
            extra_headers={
                "traceparent": f"00-{trace_id}-b7ad6b7169203331-01",
                "x-request-id": named,
            },
        )
        async for _ in stream:
            pass
    command = ["trace", named, "--address", system.address]
    assert await asyncio.to_thread(main, [*command, "--json"]) == 0
    (trace,) = json.loads(capsys.readouterr().out)["traces"]
    assert trace["trace_id"] == trace_id
    front, *others = trace["spans"]
    assert front["name"] == "POST /v1/chat/completions"
    assert front["parent_span_id"] == "b7ad6b7169203331"
    assert front["attributes"]["gen_ai.operation.name"] == "chat"
    assert front["attributes"]["gen_ai.request.stream"] == "true"
    assert front["attributes"]["http.response.status_code"] == "200"
    assert {span["service"] for span in others} == {
        "disagg-balancer",
        "disagg-prefill",
        "disagg-decode",
    }
    known = {span["span_id"] for span in trace["spans"]}
    assert all(span["parent_span_id"] in known for span in others)
    by_name = {span["name"]: span for span in others}
    assert by_name["kvstore.commit"]["attributes"]["db.system.name"] == "redis"
    assert by_name["decode.fetch"]["links"][0] == {
        "kind": "kv_handoff",
        "trace_id": trace_id,
        "span_id": by_name["prefill.commit"]["span_id"],
    }
    assert await asyncio.to_thread(main, command) == 0
    assert "POST /v1/chat/completions" in capsys.readouterr().out
    assert USER not in json.dumps(trace)
