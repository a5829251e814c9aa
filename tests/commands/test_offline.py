"""Offline means offline: scoring, comparing, slicing and reporting ask no network, not even for a name."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

CLOSED = """
import os, socket, sys
def closed(*arguments, **options):
    with open(os.environ["ASKED"], "a") as file:
        file.write(f"{sys.argv} {arguments[1:] or arguments}\\n")
    raise OSError("the network is closed")
for name in ("connect", "connect_ex", "sendto", "bind", "listen"):
    setattr(socket.socket, name, closed)
for name in ("getaddrinfo", "gethostbyname", "create_connection"):
    setattr(socket, name, closed)
"""


def test_no_command_asks_the_network(tmp_path: Path) -> None:
    """In processes of their own, whose sockets are closed from the start."""
    (tmp_path / "closed").mkdir()
    (tmp_path / "closed" / "sitecustomize.py").write_text(CLOSED)
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "TRANSFORMERS_"))}
    environment |= {
        "PYTHONPATH": os.pathsep.join([str(tmp_path / "closed"), str(ROOT)]),
        "ASKED": str(tmp_path / "asked"),
        "HF_HOME": str(tmp_path / "empty"),  # nothing was downloaded before
        "ARGAP_HOME": str(tmp_path / "home"),
        "HF_TOKEN": "hf_tokenofthehub",
        "ARGAP_API_KEY": "a-key-of-a-server",
    }
    probe = [sys.executable, "-c", "import socket; socket.create_connection(('127.0.0.1', 9))"]
    assert subprocess.run(probe, env=environment, capture_output=True, check=False).returncode == 1
    assert (tmp_path / "asked").read_text()  # so that the test can fail
    (tmp_path / "asked").unlink()
    script = """
import sys
from argap.cli import main
model = sys.argv[1]
commands = [
    ["score", model, "--ref", "attention", "--seq-len", "64", "--limit-tokens", "600", "--out", "out"],
    ["compare", "out/hybrid", "--ref", "out/attention", "--out", "again"],
    ["slice", "out", "--where", "repeated", "--name", "again"],
    ["report", "out"],
    ["models", "show", model],
]
for command in commands:
    sys.argv = ["argap", *command]
    try:
        main()
    except SystemExit as left:
        assert not left.code, command
"""
    model = str(ROOT / "argap" / "demo" / "checkpoints" / "hybrid")
    command = [sys.executable, "-c", script, model]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "report.html").is_file()
    assert not (tmp_path / "asked").exists(), (tmp_path / "asked").read_text()
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    for secret in (environment["HF_TOKEN"], environment["ARGAP_API_KEY"]):
        assert secret not in done.stdout + done.stderr
        assert not any(secret.encode() in content for content in written)
