"""Statistics of the benchmarks, and what a result says of its machine."""

from benchmarks.environment import describe, interleaved, median, ratio_of_pairs


def test_measurements_take_turns() -> None:
    order: list[str] = []

    def run(name: str, value: float) -> float:
        order.append(name)
        return value

    results = interleaved({"a": lambda: run("a", 1.0), "b": lambda: run("b", 2.0)}, repetitions=3)
    assert order == ["a", "b"] * 3
    assert results == {"a": [1.0] * 3, "b": [2.0] * 3}


def test_a_ratio_is_taken_pair_by_pair() -> None:
    # One busy moment met both of a pair; it must not count.
    assert ratio_of_pairs([2.0, 20.0, 2.0], [1.0, 10.0, 1.0]) == 2.0
    assert median([3.0, 1.0, 2.0]) == 2.0


def test_the_environment_names_machine_and_versions() -> None:
    found = describe(7)
    assert found["seed"] == 7
    assert found["cores"] > 0
    assert all(found[key] for key in ("cpu", "python", "torch", "commit"))
