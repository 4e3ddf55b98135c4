"""The port to the members, and who implements it."""

from __future__ import annotations

import inspect

from balancer.remote.legs import Peers
from balancer.remote.peers import GrpcPeers


def test_the_port_is_small_and_the_calls_over_grpc_are_its_shape() -> None:
    methods = [name for name in vars(Peers) if not name.startswith("_")]
    assert 1 <= len(methods) <= 7
    for name in methods:
        wanted, found = (inspect.signature(getattr(kind, name)) for kind in (Peers, GrpcPeers))
        assert found.parameters == wanted.parameters, name
