"""A bounded amount, taken in order of arrival."""

import asyncio
import threading

import pytest

from runtime.budget import Budget, BudgetFull
from tests.fakes.spans import facts, recorded, served


async def _turn() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_amounts_that_fit_are_granted_at_once() -> None:
    budget = Budget("bytes", 10, max_waiting=0)
    with await budget.take(6), await budget.take(4):
        assert budget.statistics().held == 10
    assert budget.statistics().held == 0


async def test_the_line_is_served_in_order_of_arrival() -> None:
    budget = Budget("bytes", 10, max_waiting=5)
    order: list[str] = []

    async def work(name: str, amount: int) -> None:
        with await budget.take(amount):
            order.append(name)
            await asyncio.sleep(0)

    first = await budget.take(8)
    async with asyncio.TaskGroup() as group:
        group.create_task(work("large", 9))
        await _turn()
        group.create_task(work("small", 1))  # would fit now, but came later
        await _turn()
        assert order == []
        first.give_back()
    assert order == ["large", "small"]
    assert budget.statistics().held == 0


async def test_one_too_many_is_refused_with_the_facts() -> None:
    budget = Budget("bytes in flight", 4, max_waiting=1)
    grant = await budget.take(4)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(budget.take(1))
        await _turn()
        with pytest.raises(BudgetFull, match="flight: 2 wanted while 4 are held") as caught:
            await budget.take(2)
        assert caught.value.num_waiting == 1
        grant.give_back()
    waiting.result().give_back()
    assert budget.statistics().held == 0


async def test_more_than_the_whole_budget_runs_alone() -> None:
    budget = Budget("bytes", 10, max_waiting=1)
    small = await budget.take(1)
    async with asyncio.TaskGroup() as group:
        large = group.create_task(budget.take(25))
        await _turn()
        assert not large.done()
        small.give_back()
    assert budget.statistics().held == 25
    large.result().give_back()
    assert budget.statistics().held == 0


async def test_parts_are_given_back_from_any_thread_and_never_twice() -> None:
    budget = Budget("bytes", 10, max_waiting=1)
    grant = await budget.take(10)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(budget.take(3))
        await _turn()
        thread = threading.Thread(target=grant.give_back, args=(3,))
        thread.start()
        thread.join()
    grant.give_back(100)
    grant.give_back()
    assert grant.left == 0
    assert budget.statistics().held == 3
    waiting.result().give_back()


async def test_a_cancelled_wait_leaves_the_line_and_lets_the_next_pass() -> None:
    budget = Budget("bytes", 10, max_waiting=2)
    holder = await budget.take(5)
    async with asyncio.TaskGroup() as group:
        large = group.create_task(budget.take(9))
        await _turn()
        small = group.create_task(budget.take(5))
        await _turn()
        large.cancel()
        await _turn()
        assert small.done()
    assert large.cancelled()
    assert budget.statistics().num_waiting == 0
    small.result().give_back()
    holder.give_back()
    assert budget.statistics().held == 0


async def test_a_grant_that_meets_its_cancellation_is_given_back() -> None:
    budget = Budget("bytes", 1, max_waiting=1)
    holder = await budget.take(1)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(budget.take(1))
        await _turn()
        holder.give_back()
        budget._serve_line()  # granted, but its task has not run yet
        waiting.cancel()
        await asyncio.wait([waiting])
    assert waiting.cancelled()
    await _turn()
    assert budget.statistics().held == 0


async def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="limit is 0"):
        Budget("bytes", 0, max_waiting=1)
    with pytest.raises(ValueError, match="-1 wanted"):
        await Budget("bytes", 1, max_waiting=1).take(-1)


async def test_only_a_wait_has_a_span() -> None:
    found = recorded()
    budget = Budget("bytes in flight", 10, max_waiting=1, span="prefill.queue")
    with served(found):
        first = await budget.take(8)
        assert found.spans == ()
        async with asyncio.TaskGroup() as group:
            group.create_task(budget.take(8))
            await _turn()
            first.give_back()
    assert facts(found.one("prefill.queue")) == {"disagg.queue": "bytes in flight"}
