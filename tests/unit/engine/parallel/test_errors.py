"""Messages an operator reads first."""

from engine.parallel.errors import CollectiveTimeout, GroupError, LayoutError, PeerLost


def test_a_timeout_names_group_exchange_step_and_late_ranks():
    error = CollectiveTimeout(
        group="decode-0",
        kind="combine",
        number=17,
        late_ranks=[2, 3],
        waited_s=30.0,
        context="step 9, kind decode, last vote [1]",
    )
    assert str(error) == (
        "group decode-0: combine exchange 17 timed out after 30 s; late ranks: 2, 3 "
        "(step 9, kind decode, last vote [1])"
    )
    assert error.late_ranks == (2, 3)
    assert isinstance(error, GroupError)


def test_a_timeout_admits_when_it_does_not_know_who_is_late():
    error = CollectiveTimeout(
        group="g", kind="vote", number=1, late_ranks=[], waited_s=0.5, context="step 0"
    )
    assert "late ranks: unknown" in str(error)


def test_a_lost_peer_is_named_when_it_is_known():
    known = PeerLost(group="g", rank=4, reason="has ended", context="step 1")
    unknown = PeerLost(group="g", rank=-1, reason="was lost", context="step 1")
    assert str(known) == "group g: rank 4 has ended; the group stops (step 1)"
    assert str(unknown) == "group g: a rank was lost; the group stops (step 1)"


def test_all_violations_stand_in_one_message():
    error = LayoutError([("V1", "first sentence"), ("V2", "second sentence")])
    assert str(error) == "V1: first sentence; V2: second sentence"
    assert error.violations == (("V1", "first sentence"), ("V2", "second sentence"))
