"""Which transports there are, and that one that cannot run here says all it needs."""

import subprocess
import sys

import pytest

from engine.parallel import backends
from engine.parallel.backends import DEVICE_BACKENDS, HOST_BACKENDS, require_backend
from engine.parallel.errors import BackendMissing
from engine.parallel.ports import RankContext, open_ports
from engine.parallel.worker import run_group


@pytest.mark.parametrize("name", HOST_BACKENDS)
def test_transports_of_the_host_are_there(name):
    require_backend(name)


def test_an_unknown_name_is_told_the_known_ones():
    with pytest.raises(ValueError, match="backend 'nccl' is unknown; known: gloo, shm, deep_ep"):
        require_backend("nccl")


def test_a_device_transport_says_everything_it_misses(monkeypatch, tmp_path):
    monkeypatch.setattr(backends, "_GPU_CONTROL", tmp_path / "nvidiactl")
    with pytest.raises(BackendMissing) as caught:
        require_backend("deep_ep")
    for words in (
        "backend deep_ep dispatches rows between GPUs",
        "adapter to the dispatch port",
        "a GPU for each rank",
        "the package deep_ep, which is not installed",
        "use shm, or gloo",
    ):
        assert words in str(caught.value)
    # With a GPU that part is not missing any more.
    (tmp_path / "nvidiactl").touch()
    with pytest.raises(BackendMissing) as caught:
        require_backend("deep_ep")
    assert "a GPU for each rank" not in str(caught.value)


@pytest.mark.parametrize("name", DEVICE_BACKENDS)
def test_no_rank_starts_without_its_transport(name):
    with pytest.raises(BackendMissing, match=name):
        run_group("nowhere:nothing", 2, {}, backend=name)
    with pytest.raises(BackendMissing, match=name):
        open_ports(RankContext(num_ranks=2, backend=name), hidden=4, top_k=1, max_tokens=2)


@pytest.mark.medium
def test_looking_loads_no_tensor_library():
    program = "import sys; sys.modules['torch'] = None; import engine.parallel.backends"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
