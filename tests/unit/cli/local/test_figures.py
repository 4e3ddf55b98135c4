"""What members have counted: the one that counted most speaks for its group."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest

from cli.local import members
from cli.local.figures import Moves, expert_moves
from cli.local.members import MemberRow
from disagg.v1 import admin_pb2, admin_pb2_grpc

pytestmark = pytest.mark.medium


class Admin(admin_pb2_grpc.AdminServiceServicer):
    def __init__(self, statistics: dict[str, float]) -> None:
        self._statistics = statistics

    def GetServerInfo(
        self, request: admin_pb2.GetServerInfoRequest, context: grpc.ServicerContext
    ) -> admin_pb2.GetServerInfoResponse:
        return admin_pb2.GetServerInfoResponse(statistics=self._statistics)


def test_the_member_that_counted_most_speaks_for_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    told = [
        ("prefill", {"engine.steps": 3.0}),
        ("decode", {"engine.expert_moves": 1.0, "engine.changed_slots": 20.0}),
        ("decode", {"engine.expert_moves": 2.0, "engine.changed_slots": 31.0}),
    ]
    # One more that is gone.
    rows = [MemberRow(role="decode", name="gone", address="127.0.0.1:1", state="ready")]
    servers = []
    for role, statistics in told:
        server = grpc.server(ThreadPoolExecutor(1))
        admin_pb2_grpc.add_AdminServiceServicer_to_server(Admin(statistics), server)
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        servers.append(server)
        rows.append(MemberRow(role=role, name=address, address=address, state="ready"))
    monkeypatch.setattr(members, "list_members", lambda address: rows)
    try:
        found = expert_moves("balancer:1")
    finally:
        for server in servers:
            server.stop(None)
    assert found == [Moves("prefill", 0, 0), Moves("decode", 2, 31)]


@pytest.mark.parametrize(
    ("moves", "text"),
    [
        (Moves("", 1, 4), "experts moved once, 4 slots got another expert"),
        (Moves("decode", 3, 0), "decode: experts moved 3 times, 0 slots got another expert"),
        (Moves("decode", 0, 0), "decode: experts never moved, the run had too few steps"),
    ],
)
def test_moves_in_one_phrase(moves: Moves, text: str) -> None:
    assert str(moves) == text
