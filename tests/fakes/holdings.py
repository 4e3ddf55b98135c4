"""What a running system holds for its requests; at rest nothing."""

from __future__ import annotations

import asyncio

import grpc

from cli.local.launcher import System
from disagg.v1 import admin_pb2, admin_pb2_grpc, membership_pb2, membership_pb2_grpc
from kvstore import KvStoreConfig, open_store


def statistics(system: System) -> dict[str, float]:
    with grpc.insecure_channel(system.address) as channel:
        stub = admin_pb2_grpc.AdminServiceStub(channel)
        return dict(stub.GetServerInfo(admin_pb2.GetServerInfoRequest(), timeout=10).statistics)


def held(system: System) -> dict[str, float]:
    """What requests hold anywhere in the system; all zero when none runs."""
    with grpc.insecure_channel(system.address) as channel:
        stub = membership_pb2_grpc.MembershipServiceStub(channel)
        members = stub.ListMembers(membership_pb2.ListMembersRequest(), timeout=10).members
    config = KvStoreConfig(block_tokens=32, owner="test")
    store = open_store(system.store_url, config, fingerprint=bytes(8), clock=lambda: 0.0)
    try:
        leases = len(store.audit())
    finally:
        store.close()
    values = statistics(system)
    return {
        "leases": leases,
        "requests": values["requests_running"],
        "clean-ups": values["clean_ups_running"],
        **{
            f"{member.member_id} {name}": getattr(member.load, name)
            for member in members
            for name in ("running", "waiting", "kv_tokens")
        },
    }


async def nothing_is_held(system: System) -> None:
    """Waits for the heartbeats after the last request; five seconds are the promise."""
    for _ in range(100):
        state = await asyncio.to_thread(held, system)
        if not any(state.values()):
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"still held: { {k: v for k, v in state.items() if v} }")
