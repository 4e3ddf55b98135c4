"""The dispatch benchmark runs, and reports every group it measured."""

import json

import pytest

from benchmarks.dispatch import main


@pytest.mark.medium
def test_it_prints_one_object_with_every_group(capsys):
    assert main(["--ranks", "2", "--steps", "3", "--warm-up", "1", "--json"]) == 0

    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [(row["backend"], row["ranks"]) for row in report["results"]] == [
        ("shm", 2),
        ("gloo", 2),
    ]
    for row in report["results"]:
        assert 0 < row["vote_ms_p50"] < row["step_ms_p90"]
        assert row["step_ms_p50"] <= row["step_ms_p90"]
    assert report["gloo_over_shm"]["2"] > 0
    assert report["settings"]["steps"] == 3
    assert report["environment"]["torch"]


@pytest.mark.parametrize("flag", ["--ranks", "--steps", "--rows"])
@pytest.mark.parametrize("value", ["0", "-1", "x"])
def test_nothing_to_measure_is_refused(flag, value, capsys):
    with pytest.raises(SystemExit) as caught:
        main([f"{flag}={value}"])
    assert caught.value.code == 2
    assert f"{value!r} is not a number from 1 on" in capsys.readouterr().err
