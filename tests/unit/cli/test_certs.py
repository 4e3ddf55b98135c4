"""`disagg certs dev`: files that OpenSSL accepts, and none that is overwritten by accident."""

from __future__ import annotations

import json
import ssl
from pathlib import Path

import pytest

from cli.main import main


def test_the_files_belong_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / "certs"
    arguments = ["certs", "dev", "--directory", str(directory), "--name", "10.1.2.3", "--json"]
    assert main(arguments) == 0
    files = json.loads(capsys.readouterr().out)
    for stem in ("tls", "client"):
        context = ssl.create_default_context(cafile=files["ca.crt"])
        context.load_cert_chain(files[f"{stem}.crt"], files[f"{stem}.key"])
        assert Path(files[f"{stem}.key"]).stat().st_mode & 0o077 == 0
    assert main(arguments) == 2
    assert "is there already; give --force" in capsys.readouterr().err
    assert main([*arguments[:-1], "--force"]) == 0
    assert "DISAGG_TLS__MODE=mtls" in capsys.readouterr().out
    assert main(["certs", "dev", "--days", "0"]) == 2
