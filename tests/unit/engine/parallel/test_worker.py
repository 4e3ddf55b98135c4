"""Groups of real rank processes: failures named fast, drains, no process left behind."""

import json
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from engine.parallel.worker import run_group

ROOT = Path(__file__).parents[4]
RANKS = ROOT / "tests" / "distributed" / "ranks"
pytestmark = [pytest.mark.medium, pytest.mark.timeout(60)]

READY_S = 30
# Ends within 2 s on an idle machine; without the abort mark it would be the collectives' 30 s.
FAST_S = 5.0


class Supervisor:
    """A process that runs one group after the other; what it and its ranks write goes to a file."""

    def __init__(self, directory):
        self.path = directory / "stderr"
        with self.path.open("ab") as written:
            self.process = subprocess.Popen(
                [sys.executable, str(RANKS / "group_ranks.py")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=written,
                text=True,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )

    @property
    def is_running(self):
        return self.process.poll() is None

    def start(self, entry, num_ranks, out, backend="shm", options=None, **timeouts):
        group = Group(self, num_ranks, out)
        asked = {
            "entry": entry,
            "num_ranks": num_ranks,
            "backend": backend,
            "options": {"out": str(out), **(options or {})},
            "timeouts": timeouts,
        }
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        return group

    def close(self):
        if self.is_running:
            self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


class Group:
    """A group of a supervisor and the ranks it reported."""

    def __init__(self, supervisor, num_ranks, out):
        self.supervisor = supervisor
        self.num_ranks = num_ranks
        self.out = out
        self._begin = supervisor.path.stat().st_size

    def ready(self):
        """Waits until every rank has announced itself; returns their process ids."""
        pids = {}
        poll = select.poll()
        poll.register(os.pidfd_open(self.supervisor.process.pid), select.POLLIN)
        for _ in range(READY_S * 50):
            for rank in range(self.num_ranks):
                path = self.out / f"rank-{rank}"
                if rank not in pids and path.exists():
                    pids[rank] = int(path.read_text().split()[0])
            if len(pids) == self.num_ranks:
                return pids
            assert not poll.poll(20), self.text()
        raise AssertionError(f"only ranks {sorted(pids)} became ready")

    def end(self, timeout_s):
        """Waits for the end of the group; returns its exit code and what was written."""
        answered, _, _ = select.select([self.supervisor.process.stdout], [], [], timeout_s)
        assert answered, f"not over after {timeout_s} s: {self.text()}"
        return int(self.supervisor.process.stdout.readline()), self.text()

    def send_signal(self, number):
        self.supervisor.process.send_signal(number)

    def text(self):
        return self.supervisor.path.read_bytes()[self._begin :].decode()

    def error(self, rank):
        return (self.out / f"error-{rank}").read_text()


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A supervisor for all tests that leave theirs alive."""
    made = []

    def find():
        if not made or not made[-1].is_running:
            made.append(Supervisor(tmp_path_factory.mktemp("supervisor")))
        return made[-1]

    yield find
    for supervisor in made:
        supervisor.close()


@pytest.fixture
def start(shared, tmp_path):
    return lambda entry, num_ranks, **named: shared().start(entry, num_ranks, tmp_path, **named)


@pytest.fixture
def start_alone(tmp_path):
    """Of a supervisor that may be lost."""
    supervisor = Supervisor(tmp_path)
    yield lambda entry, num_ranks: supervisor.start(entry, num_ranks, tmp_path)
    supervisor.close()


def wait_until_gone(descriptors, timeout_s):
    """True when every process behind the descriptors has ended."""
    poll = select.poll()
    left = set(descriptors)
    for descriptor in left:
        poll.register(descriptor, select.POLLIN)
    for _ in range(len(descriptors) * 2):
        for descriptor, _ in poll.poll(timeout_s * 1000):
            poll.unregister(descriptor)
            left.discard(descriptor)
        if not left:
            return True
    return False


def shared_memory_files():
    # Named semaphores are none of ours, and come and go with other programs.
    return {name for name in os.listdir("/dev/shm") if not name.startswith("sem.")}


@pytest.mark.parametrize("backend", ["shm", "gloo"])
def test_a_killed_rank_stops_the_group_by_name(start, backend):
    before = shared_memory_files()
    group = start("vote_for_ever", 3, backend=backend)
    pids = group.ready()
    descriptors = [os.pidfd_open(pid) for pid in pids.values()]

    os.kill(pids[1], signal.SIGKILL)

    code, text = group.end(FAST_S)
    assert code == 1
    assert "group testers: rank 1 died of SIGKILL; stopping the group" in text
    assert wait_until_gone(descriptors, FAST_S)
    for rank in (0, 2):
        assert group.error(rank).startswith("group testers: ")
    assert "rank 1 failed" in group.error(0) or "rank 1 was lost" in group.error(0)
    assert shared_memory_files() == before


def test_a_killed_supervisor_takes_its_ranks_along(start_alone):
    before = shared_memory_files()
    group = start_alone("vote_for_ever", 3)
    descriptors = [os.pidfd_open(pid) for pid in group.ready().values()]

    group.supervisor.process.kill()

    assert wait_until_gone(descriptors, FAST_S)
    assert group.supervisor.process.wait() == -signal.SIGKILL
    assert shared_memory_files() == before


@pytest.fixture
def run_here(tmp_path, monkeypatch, caplog):
    """Runs a group under this process; returns its exit code, log and the ranks' error texts."""
    monkeypatch.syspath_prepend(RANKS)

    def run(entry, num_ranks, backend="shm", **timeouts):
        code = run_group(
            f"group_ranks:{entry}",
            num_ranks,
            {"out": str(tmp_path)},
            backend=backend,
            group_name="testers",
            **timeouts,
        )
        errors = {
            int(path.name.removeprefix("error-")): path.read_text()
            for path in tmp_path.glob("error-*")
        }
        return code, caplog.text, errors

    return run


def test_ranks_that_finish_end_the_group_well(run_here, tmp_path):
    assert run_here("finish", 2) == (0, "", {})
    assert (tmp_path / "rank-1").read_text().endswith("threads 1")


@pytest.mark.parametrize(
    ("entry", "how"), [("fail", "exited with 3"), ("raise_error", "exited with 1")]
)
def test_a_failing_rank_stops_the_group_by_name(run_here, entry, how):
    code, log, errors = run_here(entry, 2)
    assert code == 1
    assert f"group testers: rank 1 {how}; stopping the group" in log
    assert "rank 1 failed" in errors.get(0, "rank 1 failed")
    if entry == "raise_error":
        assert "stopping the group: RuntimeError: rank 1 is broken on purpose" in log


def test_a_lost_fork_server_is_named_and_leaves_no_rank_behind(start_alone):
    group = start_alone("vote_for_ever", 3)
    pids = group.ready()
    descriptors = [os.pidfd_open(pid) for pid in pids.values()]
    status = Path(f"/proc/{pids[0]}/status").read_text()
    (server,) = (int(line.split()[1]) for line in status.splitlines() if line[:5] == "PPid:")
    assert server != group.supervisor.process.pid
    # A signal to the whole process group is for its ranks.
    status = Path(f"/proc/{server}/status").read_text()
    (blocked,) = (int(line.split()[1], 16) for line in status.splitlines() if line[:6] == "SigBlk")
    for number in (signal.SIGTERM, signal.SIGINT):
        assert blocked >> (number - 1) & 1

    os.kill(server, signal.SIGKILL)

    code, text = group.end(FAST_S)
    assert code == 1
    assert " was lost: the fork server has ended and its exit status with it; stopping" in text
    assert wait_until_gone(descriptors, FAST_S)


@pytest.mark.parametrize("backend", ["shm", "gloo"])
def test_a_late_rank_is_named(run_here, backend):
    code, log, errors = run_here("vote_late", 3, backend, collective_timeout_s=0.3)
    assert code == 1
    assert "exited with 1 because of rank 1; stopping the group: " in log
    # Whichever of its peers ended first, the log has the words of them all.
    assert "CollectiveTimeout: group testers: vote exchange" in log
    timed_out = [text for text in errors.values() if "timed out after 0.3 s" in text]
    assert timed_out, errors
    assert "group testers: vote exchange" in timed_out[0]
    assert (
        "late ranks: 1 (step 1, kind decode, last vote [1, 0, 1, 1, 0, 3, 0, 0, 0])" in timed_out[0]
    )


def test_a_rank_that_left_is_not_waited_for(run_here):
    code, _, errors = run_here("leave_early", 2)
    assert code == 1
    assert "rank 1 has ended before vote exchange 1" in errors[0]


def test_a_rank_can_give_the_group_up(run_here):
    code, _, errors = run_here("abort", 2)
    assert code == 1
    assert "rank 1 failed while this rank waited in vote exchange" in errors[0]


def test_ranks_with_other_sizes_are_refused(run_here):
    code, _, errors = run_here("other_sizes", 2)
    assert code == 1
    assert any("(8, 2, 4)" in text and "(8, 2, 5)" in text for text in errors.values()), errors


def test_an_entry_that_does_not_exist_fails_the_group(run_here):
    code, log, _ = run_here("nobody", 1)
    assert code == 1
    assert "rank 0 exited with 1" in log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_drains(start, number):
    group = start("drain", 2)
    group.ready()
    group.send_signal(number)
    assert group.end(READY_S) == (0, "")
    assert (group.out / "drained-0").exists()
    assert (group.out / "drained-1").exists()


def test_ranks_without_a_handler_end_at_the_first_signal(start):
    group = start("wait_for_signal", 2)
    group.ready()
    group.send_signal(signal.SIGTERM)
    assert group.end(READY_S) == (0, "")


def test_the_second_signal_kills(start):
    group = start("drain", 2, options={"drain": "never"})
    descriptors = [os.pidfd_open(pid) for pid in group.ready().values()]
    group.send_signal(signal.SIGTERM)
    group.send_signal(signal.SIGINT)
    code, text = group.end(FAST_S)
    assert code in (128 + signal.SIGINT, 128 + signal.SIGTERM)
    assert "second signal, killing the ranks" in text
    assert wait_until_gone(descriptors, FAST_S)


def test_a_drain_that_takes_too_long_names_the_ranks(start):
    group = start("drain", 2, options={"drain": "never"}, drain_timeout_s=0.3)
    group.ready()
    group.send_signal(signal.SIGTERM)
    code, text = group.end(READY_S)
    assert code == 1
    assert "ranks [0, 1] did not drain within 0.3 s" in text


@pytest.mark.parametrize(
    ("arguments", "named", "message"),
    [
        (("no_colon", 2), {}, "'no_colon' is not of the form 'package.module:function'"),
        (("a:b", 0), {}, "num_ranks 0 is not in 1..512"),
        (("a:b", 2), {"backend": "smoke"}, "'smoke' is unknown; known: gloo, shm, deep_ep"),
    ],
)
def test_bad_arguments_are_refused(arguments, named, message):
    with pytest.raises(ValueError) as caught:
        run_group(*arguments, {}, **named)
    assert message in str(caught.value)
