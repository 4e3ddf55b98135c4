"""What the members of a running system have counted, asked over gRPC."""

from __future__ import annotations

from dataclasses import dataclass

_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Moves:
    """How the experts of a group of ranks have moved by their load.

    Attributes:
        group: Role of its members; empty for a group without services.
        count: Times they were placed anew.
        changed_slots: Slots that got another expert, over all layers and moves.
    """

    group: str
    count: int
    changed_slots: int

    def __str__(self) -> str:
        """Says it in one phrase."""
        group = f"{self.group}: " if self.group else ""
        if not self.count:
            return f"{group}experts never moved, the run had too few steps"
        times = "once" if self.count == 1 else f"{self.count} times"
        return f"{group}experts moved {times}, {self.changed_slots} slots got another expert"


def expert_moves(address: str) -> list[Moves]:
    """How experts have moved in each group of members of the balancer at `address`.

    Ranks of a group move theirs together, so the member that has counted most speaks for all; one
    that does not answer has counted nothing.
    """
    import grpc

    from cli.access import access_of
    from cli.local.members import list_members
    from client.transport import open_channel
    from disagg.v1 import admin_pb2, admin_pb2_grpc

    found: dict[str, tuple[int, int]] = {}
    for member in list_members(address):
        try:
            with open_channel(member.address, access_of()) as channel:
                answer = admin_pb2_grpc.AdminServiceStub(channel).GetServerInfo(
                    admin_pb2.GetServerInfoRequest(), timeout=_TIMEOUT_S
                )
        except grpc.RpcError:
            continue
        told = answer.statistics
        count = (int(told["engine.expert_moves"]), int(told["engine.changed_slots"]))
        found[member.role] = max(found.get(member.role, (0, 0)), count)
    return [Moves(role, *counts) for role, counts in found.items()]
