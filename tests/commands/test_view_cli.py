"""`argap view` as a command: what it prints, what it refuses, and how it ends."""

import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request

import pytest


def test_it_serves_until_interrupted_without_torch(token_result):
    code = (
        "import signal, sys\n"
        "from argap.cli import main\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background job ignores it
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
        with urllib.request.urlopen(request, timeout=600) as answer:
            assert json.load(answer)["gap"]["reference"] == "ref"
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(f"{origin}/api/overview", timeout=600)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=600)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "Traceback" not in said
    assert said.endswith("torch: False\n")
