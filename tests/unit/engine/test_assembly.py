"""Leaders and followers put together: who votes, who samples, and how they end."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Iterator

import pytest
import torch

from engine.assembly import BuiltEngine, BuiltFollower
from engine.build import build_rank
from engine.config import EngineSettings
from engine.parallel.errors import PeerLost
from engine.parallel.layout import parse_layout
from engine.parallel.shared_memory import create_segment
from engine.parallel.worker import RankContext
from engine.request import EngineRequest, SamplingParams, TokenOut
from tests.fakes.models import GOLDEN, golden

MODEL = GOLDEN / "v4_base"
Built = BuiltEngine | BuiltFollower


@pytest.fixture
def context() -> Iterator[RankContext]:
    descriptor = create_segment()
    yield RankContext(num_ranks=2, group_name="pair", backend="shm", segment_fd=descriptor)
    os.close(descriptor)


def build_pair(context: RankContext, layout: str) -> list[Built]:
    """Two ranks of a layout, built by threads, since building is a collective."""
    built: dict[int, Built] = {}

    def build(rank: int) -> None:
        settings = EngineSettings(
            num_pages=16, max_num_seqs=4, max_num_batched_tokens=64, rank=rank, num_ranks=2
        )
        built[rank] = build_rank(
            MODEL,
            settings,
            context=dataclasses.replace(context, rank=rank),
            run=parse_layout(layout),
        )

    threads = [threading.Thread(target=build, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    return [built[rank] for rank in range(2)]


@pytest.mark.medium
@pytest.mark.parametrize("layout", ["cp=2", "attn_tp=2,path=b"])
def test_a_leader_samples_and_its_follower_ends_with_it(context: RankContext, layout: str) -> None:
    torch.set_num_threads(1)
    leader, follower = build_pair(context, layout)
    assert isinstance(leader, BuiltEngine)
    assert isinstance(follower, BuiltFollower)
    assert leader.leading is not None
    assert (leader.ports.vote is None, follower.ports.vote is None) == (False, True)
    following = threading.Thread(target=follower.follower.follow)
    following.start()
    case = golden(MODEL)["prompts"][1]
    leader.engine.add(
        EngineRequest(
            request_id="r",
            token_ids=tuple(case["input_ids"]),
            sampling=SamplingParams(max_tokens=3, ignore_eos=True),
        )
    )
    tokens: list[int] = []
    for _ in range(20):
        if not leader.engine.has_work():
            break
        _, events = leader.engine.step()
        tokens += [event.token_id for event in events if isinstance(event, TokenOut)]
    assert tokens == case["greedy"][:3]
    assert following.is_alive()
    leader.close()
    following.join(20.0)
    assert not following.is_alive()
    follower.close()
    # Steps of a follower are counted though it never votes.
    assert follower.ports.ledger.num_steps > 0


@pytest.mark.medium
def test_closing_a_leader_minds_no_lost_follower(context: RankContext) -> None:
    leader, follower = build_pair(context, "cp=2")
    assert isinstance(leader, BuiltEngine)
    assert isinstance(follower, BuiltFollower)
    follower.ports.abort()
    with pytest.raises(PeerLost, match="rank 1 failed"):
        follower.follower.follow()
    leader.close()
    follower.close()
