"""A real system where every connection is mutual TLS and every caller has a key or a name."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import grpc
import httpx2
import pytest

from cli.certs import PEER_NAME
from cli.local.launcher import System
from client import Access, Client, ClientError, DirectClient, Sampling
from client.transport import open_channel
from disagg.v1 import decode_pb2, decode_pb2_grpc, routing_pb2, routing_pb2_grpc
from tests.fakes.certificates import dev_certificates, tls_section
from tests.fakes.systems import launched

pytestmark = pytest.mark.medium
KEY = "0123456789abcdef0123"
PROMPT = "ROMEO: "
EIGHT = Sampling(max_tokens=8)


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(f"team-a {KEY}\n")
    section = tls_section(dev_certificates(), "mtls", peers=PEER_NAME)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in section.items():
            patch.setenv(f"DISAGG_TLS__{name.upper()}", str(value))
        patch.setenv("DISAGG_AUTH__KEYS_FILE", str(keys))
        with launched(decode_ranks=1, http_port=0) as running:
            yield running


def access(stem: str, key: str = "") -> Access:
    files = dev_certificates()
    return Access(
        api_key=key,
        ca_file=files / "ca.crt",
        cert_file=files / f"{stem}.crt",
        key_file=files / f"{stem}.key",
    )


def test_the_same_tokens_by_every_way_in(system: System) -> None:
    with Client(system.address, access=access("client", KEY)) as client:
        relayed = client.generate(PROMPT, sampling=EIGHT)
    # Whoever was given a ticket may stream; parts of the system may anyway.
    for way_in in (access("client", KEY), access("tls")):
        with DirectClient(system.address, access=way_in) as direct:
            assert direct.generate(PROMPT, sampling=EIGHT).token_ids == relayed.token_ids
    body = {"prompt": PROMPT, "max_tokens": 8, "temperature": 0}
    context = ssl.create_default_context(cafile=str(dev_certificates() / "ca.crt"))
    with httpx2.Client(
        base_url=f"https://{system.http_address}", verify=context, trust_env=False, timeout=30
    ) as http:
        assert http.get("/health").status_code == 200
        assert http.post("/v1/completions", json=body).status_code == 401
        answer = http.post("/v1/completions", json=body, headers={"authorization": f"Bearer {KEY}"})
    assert answer.json()["choices"][0]["text"] == relayed.text


def test_strangers_stay_outside(system: System) -> None:
    anonymous = Access(ca_file=Path(dev_certificates() / "ca.crt"))
    for stranger, code in (
        (access("client"), "UNAUTHENTICATED"),
        (access("client", "x" * 20), "UNAUTHENTICATED"),
        (anonymous, "UNAVAILABLE"),
        (Access(api_key=KEY), "UNAVAILABLE"),
    ):
        with (
            Client(system.address, access=stranger, max_resumes=0) as client,
            pytest.raises(ClientError) as caught,
        ):
            client.generate(PROMPT, sampling=EIGHT)
        assert caught.value.code == code
    with open_channel(system.address, access("client", KEY)) as channel:
        wanted = routing_pb2.RouteRequest()
        wanted.generate.text = PROMPT
        routed = routing_pb2_grpc.RoutingServiceStub(channel).Route(
            wanted, timeout=20, metadata=access("client", KEY).metadata
        )
    forged = decode_pb2.DecodeRequest()
    forged.CopyFrom(routed.decode.request)
    forged.credit_id = "c1"
    with open_channel(routed.decode.address, access("client")) as channel:
        stub = decode_pb2_grpc.DecodeServiceStub(channel)
        with pytest.raises(grpc.RpcError, match="no open credit of this request"):
            list(stub.Decode(forged, timeout=5))
        reserve = decode_pb2.ReserveSlotRequest(request_id="mine", num_tokens=1)
        with pytest.raises(grpc.RpcError, match="for parts of the system"):
            stub.ReserveSlot(reserve, timeout=5)
        assert len(list(stub.Decode(routed.decode.request, timeout=20))) > 1
