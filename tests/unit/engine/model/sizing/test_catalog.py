"""Named configs and GPUs, and what is unknown."""

from pathlib import Path

import pytest

from engine.model.config import ModelConfig, ModelConfigError
from engine.model.sizing.catalog import gpu_names, model_names, read_config, read_gpu
from tests.fakes import released

TINY = Path(__file__).parents[5] / "models" / "tiny-v4"


def test_the_names_of_the_command_are_known():
    assert model_names() == ("llama3-70b", "v4-flash", "v4-pro", "v4.1-flash")
    assert "h200" in gpu_names()
    assert read_gpu("h200").memory_bytes == 141_000_000_000
    assert read_gpu("h200").ranks_per_node == 8


@pytest.mark.parametrize(
    ("name", "config"), [("v4-flash", released.V4_FLASH), ("v4-pro", released.V4_PRO)]
)
def test_the_files_are_configs_the_engine_reads(name, config):
    assert ModelConfig.from_dict(read_config(name)) == config


def test_a_directory_is_read_as_well():
    assert read_config(str(TINY))["model_type"] == "deepseek_v4"


def test_what_is_unknown_is_named_with_what_is_known(tmp_path):
    with pytest.raises(ModelConfigError, match=r"'v5' is neither .* v4-flash"):
        read_config("v5")
    with pytest.raises(ModelConfigError, match=r"GPU 'tpu' is unknown; known: .*h200"):
        read_gpu("tpu")
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(ModelConfigError, match="holds list"):
        read_config(str(tmp_path))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelConfigError, match="cannot be read as JSON"):
        read_config(str(tmp_path))
