"""The launcher with stand-ins for the parts: order, readiness, failure, stop."""

from __future__ import annotations

import os
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from cli.errors import CommandError
from cli.local import children, launcher
from cli.local.launcher import StartLate, System, running_system
from cli.local.topology import Topology
from runtime.errors import ExitCode

pytestmark = pytest.mark.medium

# Each stand-in is a package of its own name: it notes its arguments and does what its part does.
BALANCER = """
import json, sys, threading, signal
from concurrent import futures
import grpc
from disagg.v1 import membership_pb2 as pb, membership_pb2_grpc as rpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
members = []
class Face(rpc.MembershipServiceServicer):
    def Heartbeat(self, request, context):
        members.append(request.member)
        return pb.HeartbeatResponse()
    def ListMembers(self, request, context):
        return pb.ListMembersResponse(members=members)
server = grpc.server(futures.ThreadPoolExecutor(2))
rpc.add_MembershipServiceServicer_to_server(Face(), server)
ready = health.HealthServicer()
ready.set("readiness", health_pb2.HealthCheckResponse.SERVING)
health_pb2_grpc.add_HealthServicer_to_server(ready, server)
port = server.add_insecure_port("127.0.0.1:0")
server.start()
flags = dict(zip(sys.argv[1::2], sys.argv[2::2]))
http = {"http": f"h:{flags['--http']}"} if "--http" in flags else {}
print(json.dumps({"event": "ready", "address": f"127.0.0.1:{port}", **http}), flush=True)
stop.wait()
server.stop(0).wait()
"""
MEMBER = """
import os, pathlib, signal, sys, threading
import grpc
from disagg.v1 import membership_pb2 as pb, membership_pb2_grpc as rpc
flags = dict(zip(sys.argv[1::2], sys.argv[2::2]))
pathlib.Path(__file__).with_name("store.txt").write_text(os.environ["DISAGG_STORE__URL"])
pathlib.Path(__file__).with_name("flags.txt").write_text(repr(sorted(flags.items())))
stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
role = pb.MEMBER_ROLE_PREFILL if "prefill" in flags["--group"] else pb.MEMBER_ROLE_DECODE
channel = grpc.insecure_channel(flags["--balancer"])
for rank in range(int(flags["--ranks"])):
    member = pb.Member(member_id=f"{flags['--group']}-{rank}", role=role, rank=rank, ready=True)
    rpc.MembershipServiceStub(channel).Heartbeat(pb.HeartbeatRequest(member=member), timeout=9)
stop.wait()
"""
FAILING = "import sys; sys.stderr.write('no such tensor\\n'); sys.exit(2)"
STUBBORN = MEMBER.replace("lambda *_: stop.set()", "signal.SIG_IGN")


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts the stand-ins before the real packages, for children only."""
    root = Path(__file__).parents[4]
    for name, program in (
        ("balancer", BALANCER),
        ("prefill_service", MEMBER),
        ("decode_service", MEMBER),
    ):
        package = tmp_path / "parts" / name
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "__main__.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'parts'}:{root / 'proto'}")
    monkeypatch.setattr(children.sys, "executable", sys.executable)
    monkeypatch.chdir(tmp_path)  # `python -m` looks into the working directory first
    make = launcher.tempfile.mkdtemp

    def mkdtemp(*, prefix: str) -> str:
        is_run = prefix == "disagg-run-"
        return str(_made(tmp_path / "run")) if is_run else make(prefix=prefix)

    monkeypatch.setattr(launcher.tempfile, "mkdtemp", mkdtemp)
    return tmp_path / "parts"


def _made(path: Path) -> Path:
    path.mkdir()
    return path


TOPOLOGY = Topology(
    model=Path("m"),
    prefill_ranks=1,
    decode_ranks=3,
    store_url="memory://me:secret@",
    kv_quantisers="off",
    redundant=2,
    rebalance_after=7,
    http_port=8000,
)


def test_a_system_comes_up_and_leaves_nothing(
    parts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running_system(TOPOLOGY) as system:
        assert (tmp_path / "run" / "balancer.out").exists()
        rows = {(row.role, row.name): row for row in system.rows()}
        assert set(rows) == {
            ("store", ""),
            ("balancer", ""),
            ("prefill", "prefill-0-0"),
            *(("decode", f"decode-0-{rank}") for rank in range(3)),
        }
        assert rows["store", ""].address == "memory://me:***@"
        flags = (parts / "decode_service" / "flags.txt").read_text()
        assert "('--ranks', '3')" in flags
        assert "('--events-endpoint', '')" in flags
        # The table of processes shows flags to everybody, the environment to nobody.
        assert "secret" not in flags
        assert (parts / "decode_service" / "store.txt").read_text() == "memory://me:secret@"
        assert "('--model-kv-quantisers', 'off')" in flags
        assert "('--engine-min-redundant', '2')" in flags
        assert "('--engine-rebalance-interval-steps', '7')" in flags
        assert f"('--balancer', '{system.address}')" in flags
        assert system.http_address == "h:8000"
        system.check()
    assert [child.exit_code for child in system.children] == [0, 0, 0]
    assert not (tmp_path / "run").exists()
    err = capsys.readouterr().err
    assert "starting m, 1 prefill + 3 decode ranks" in err
    assert "3 ranks" in err


def test_a_part_that_fails_is_shown_with_its_log_and_its_code(
    parts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (parts / "decode_service" / "__main__.py").write_text(FAILING)
    with pytest.raises(CommandError, match="decode ended with exit code 2") as caught:
        _start(TOPOLOGY)
    assert "| no such tensor" in str(caught.value)
    assert caught.value.exit_code is ExitCode.CONFIGURATION
    assert (tmp_path / "run" / "decode.log").exists()  # kept, and named
    assert str(tmp_path / "run") in capsys.readouterr().err


def test_a_private_store_that_dies_ends_the_system_and_is_named(parts: Path) -> None:
    with running_system(replace(TOPOLOGY, store_url=None)) as system:
        store = system.rows()[0]
        os.kill(int(store.pid), signal.SIGKILL)
        with pytest.raises(CommandError, match="a store of yours with --store URL") as caught:
            _watch(system)
        assert str(caught.value).startswith(
            f"the private store {store.address} (pid {store.pid}) ended"
        )
        assert caught.value.exit_code is ExitCode.FAILED
        system._store = None  # the rest ends as ever
    assert [child.exit_code for child in system.children] == [0, 0, 0]


def _watch(system: System) -> None:
    pause = threading.Event()
    for _ in range(1000):
        system.check()
        pause.wait(0.01)


@pytest.mark.parametrize(
    ("url", "code"),
    [("unix:///nowhere/s", ExitCode.DEPENDENCY), ("x://y", ExitCode.CONFIGURATION)],
)
def test_a_store_that_does_not_answer_is_told_before_anything_starts(
    parts: Path, url: str, code: ExitCode
) -> None:
    with (
        pytest.raises(CommandError, match="store") as caught,
        running_system(replace(TOPOLOGY, store_url=url)),
    ):
        raise AssertionError("it started")
    assert caught.value.exit_code is code
    assert not (parts.parent / "run").exists()  # no log is kept, so nothing has started


def test_a_part_that_never_gets_ready_is_bounded(parts: Path) -> None:
    (parts / "decode_service" / "__main__.py").write_text(
        "import threading; threading.Event().wait()"
    )
    with pytest.raises(CommandError, match=r"are not ready after 5 s") as caught:
        _start(TOPOLOGY, start_timeout_s=5.0)
    assert caught.value.exit_code is ExitCode.FAILED


def test_the_balancer_has_no_more_time_than_all_of_it(parts: Path) -> None:
    (parts / "balancer" / "__main__.py").write_text("import threading; threading.Event().wait()")
    with pytest.raises(StartLate, match=r"the balancer does not listen after 0.2 s"):
        _start(TOPOLOGY, start_timeout_s=0.2)


def _start(topology: Topology, **options: float) -> None:
    with running_system(topology, **options):
        pytest.fail("it cannot be ready")


def test_a_part_that_does_not_stop_is_killed(
    parts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (parts / "decode_service" / "__main__.py").write_text(STUBBORN)
    monkeypatch.setattr(launcher, "_STOP_MEMBERS_S", 0.3)
    with running_system(TOPOLOGY) as system:
        pass
    assert "decode did not stop within 0.3 s and is killed" in capsys.readouterr().err
    assert system.children[2].exit_code == -9


def test_a_balancer_that_waits_for_a_lost_part_is_hurried(
    parts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    patient = BALANCER.replace("stop.wait()", "stop.wait(); stop.clear(); stop.wait()")
    (parts / "balancer" / "__main__.py").write_text(patient)
    monkeypatch.setattr(launcher, "_TELL_CALLERS_S", 0.2)
    with pytest.raises(CommandError, match="decode ended with signal SIGKILL") as caught:
        _lose_decode()
    assert caught.value.exit_code is ExitCode.FAILED
    assert "killed" not in capsys.readouterr().err


def _lose_decode() -> None:
    with running_system(TOPOLOGY) as system:
        os.kill(system.children[2].pid, signal.SIGKILL)
        _watch(system)


def test_an_interrupt_stops_everything(parts: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), running_system(TOPOLOGY) as system:
        raise KeyboardInterrupt
    assert [child.exit_code for child in system.children] == [0, 0, 0]
    assert not (tmp_path / "run").exists()
