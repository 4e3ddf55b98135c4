"""A balancer that is put together: its housekeeping and its condition."""

from __future__ import annotations

import pytest

from runtime.errors import Reason
from tests.fakes.front_door import front_door

pytestmark = pytest.mark.medium


async def test_members_that_fall_silent_are_forgotten() -> None:
    membership = {"interval_s": 0.01, "stale_after_s": 0.5, "forget_after_s": 0.6}
    async with front_door(membership=membership) as door:
        balancer = door.balancer
        await door.until(lambda: balancer.members.views(balancer.clock.now())[0].age_s > 0.6)
        condition = await balancer.examine()
        assert (condition.is_ready, condition.cause) == (False, "no_members")
        assert balancer.members.views(balancer.clock.now()) == ()
        for member in door.members:
            await member.announce(door.channel)
        assert (await balancer.examine()).is_ready
        door.store.reachable = False
        assert (await balancer.examine()).cause == "store_down"


async def test_series_of_what_only_the_settings_name_begin_at_zero() -> None:
    async with front_door(routing={"boundaries": [100]}) as door:
        page = door.balancer.metrics.exposition()[0].decode()
        for tier in door.balancer.tiers.names:
            for verdict in ("good", "late_first_token", "slow_tokens", "failed"):
                labels = f'model_name="",tier="{tier}",verdict="{verdict}"'
                assert f"disagg_slo_requests_total{{{labels}}} 0.0" in page
        assert len(door.balancer.tiers.names) == 2


async def test_a_store_that_is_down_is_the_reason_for_members_that_are_not_ready() -> None:
    async with front_door(announce=False, limits={"recovery_wait_s": 0.01}) as door:
        for member in door.members:
            await member.announce(door.channel, ready=False)
        assert (await door.balancer.examine()).cause == "no_members"
        error = await door.generate()
        assert error.reason is Reason.NO_PREFILL
        door.store.reachable = False
        assert (await door.balancer.examine()).cause == "store_down"
        error = await door.generate("r2")
        assert error.reason is Reason.STORE_DOWN
        assert error.retry_after_s == 1.0
        assert "the KV store does not answer" in error.message
