"""Credits leave the ledger exactly once."""

import pytest

from decode_service.credits import Credits


def test_a_credit_is_redeemed_once_by_its_own_request() -> None:
    credits = Credits(ttl_s=5.0)
    credit = credits.open("r-1", 100.0)
    assert credits.redeem(credit.credit_id, "r-2", 101.0) is None
    assert credits.redeem(credit.credit_id, "r-1", 101.0) == credit
    assert credits.redeem(credit.credit_id, "r-1", 101.0) is None
    assert not credits.release(credit.credit_id)
    assert len(credits) == 0


def test_release_is_idempotent() -> None:
    credits = Credits(ttl_s=5.0)
    credit = credits.open("r-1", 0.0)
    assert credits.release(credit.credit_id)
    assert not credits.release(credit.credit_id)
    assert credits.redeem(credit.credit_id, "r-1", 0.0) is None


def test_credits_lapse_at_their_deadline_and_cannot_be_redeemed_before_the_sweep() -> None:
    credits = Credits(ttl_s=5.0)
    first = credits.open("r-1", 0.0)
    second = credits.open("r-2", 1.0)
    assert credits.expire(4.9) == []
    assert credits.redeem(first.credit_id, "r-1", 5.0) is None
    assert credits.expire(5.0) == [first]
    assert credits.expire(5.0) == []
    assert credits.redeem(second.credit_id, "r-2", 5.9) == second


def test_ids_are_never_used_twice() -> None:
    credits = Credits(ttl_s=1.0)
    ids = []
    for number in range(3):
        credit = credits.open("r", float(number))
        ids.append(credit.credit_id)
        credits.release(credit.credit_id)
    assert len(set(ids)) == 3


def test_a_life_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="ttl_s is 0"):
        Credits(ttl_s=0)


def test_whether_a_credit_is_held_does_not_use_it_up() -> None:
    credits = Credits(ttl_s=5.0)
    credit = credits.open("r-1", 0.0)
    assert credits.holds(credit.credit_id, "r-1", 4.9)
    assert not credits.holds(credit.credit_id, "r-2", 4.9)
    assert not credits.holds("c9", "r-1", 0.0)
    assert not credits.holds(credit.credit_id, "r-1", 5.0)
    assert credits.redeem(credit.credit_id, "r-1", 4.9) == credit
