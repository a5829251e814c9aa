"""`argap view` as a command: what it prints, what it refuses, and how it ends."""

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

from argap.view.serve import listen

COMMAND = [sys.executable, "-m", "argap", "view"]


def refused(*arguments: object) -> str:
    """What the command says on stderr; it must fail with one line."""
    done = subprocess.run([*COMMAND, *map(str, arguments)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_it_serves_until_interrupted_without_torch(token_result):
    code = (
        "import sys\n"
        "from argap.cli import main\n"
        f"sys.argv = ['argap', 'view', {str(token_result)!r}, '--port', '0']\n"
        "try: main()\n"
        "finally: print('torch:', 'torch' in sys.modules, file=sys.stderr)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        origin, _, token = address.partition("/?token=")
        assert origin.startswith("http://127.0.0.1:")
        assert len(token) == 32
        port = origin.rpartition(":")[2]
        request = urllib.request.Request(f"{origin}/api/overview", headers={"Cookie": f"argap-{port}={token}"})
        with urllib.request.urlopen(request, timeout=20) as answer:
            assert json.load(answer)["gap"]["reference"] == "ref"
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(f"{origin}/api/overview", timeout=20)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "Traceback" not in said
    assert said.endswith("torch: False\n")


def test_refusals_are_one_line(token_result, tmp_path):
    assert "no gap.json there; expected a folder that `argap score` or `argap compare` wrote" in refused(tmp_path)
    with listen(0) as taken:
        port = taken.getsockname()[1]
        said = refused(token_result, "--port", port)
        assert said == f"argap: --port {port}: Address already in use on 127.0.0.1; use --port 0 for one that is free\n"
