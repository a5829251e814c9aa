"""What is installed: the wheel, the import root, and a command line that starts at once."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("kernels", "bigram_index", "reports")


def python(code: str, folder: Path) -> str:
    """What ``code`` prints in a fresh interpreter that does not look for modules in ``folder``."""
    done = subprocess.run([sys.executable, "-P", "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("name", FOLDERS)
def test_top_level_folders_are_reached_through_argap_only(name):
    assert (ROOT / "argap" / name).is_symlink()
    assert (ROOT / "argap" / name).resolve() == ROOT / name
    assert not (ROOT / name / "__init__.py").exists(), "a top-level package of that name would hide others'"


def test_importing_argap_leaves_no_top_level_package_of_ours(tmp_path):
    code = (
        "import sys, argap.models, argap.kernels.linear_logprob, argap.reports.tables, argap.bigram_index.store\n"
        f"ours = [n for n in {FOLDERS!r} if n in sys.modules and {str(ROOT)!r} in str(sys.modules[n].__path__)]\n"
        "print(ours)"
    )
    assert python(code, tmp_path) == "[]"


def test_help_imports_nothing_heavy(tmp_path):
    code = (
        "import sys; sys.argv = ['argap', '--help']\n"
        "from argap.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'transformers', 'numpy', 'pandas', 'pyarrow', 'matplotlib', 'numba', 'rich.console'}\n"
        "print('heavy:', sorted(heavy & set(sys.modules)))"
    )
    assert python(code, tmp_path).endswith("heavy: []")


@pytest.mark.parametrize("group", [[], ["index"], ["models"], ["ref"]])
def test_no_line_of_help_is_cut(group, monkeypatch, capsys):
    from argap.cli import main

    monkeypatch.setattr("sys.argv", ["argap", *group, "--help"])
    with pytest.raises(SystemExit):
        main()
    commands = capsys.readouterr().out.partition("Commands:")[2]
    assert commands
    assert "..." not in commands


def test_the_model_type_is_registered_on_import(tmp_path):
    code = (
        "import argap.models\nfrom transformers import AutoConfig, AutoModelForCausalLM\n"
        "config = AutoConfig.for_model('argap', hidden_size=32, num_hidden_layers=1, vocab_size=64)\n"
        "print(type(AutoModelForCausalLM.from_config(config)).__name__)"
    )
    assert python(code, tmp_path) == "ArgapForCausalLM"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> set[str]:
    """The names in a wheel built from this tree, without fetching anything."""
    out = tmp_path_factory.mktemp("wheel")
    shutil.rmtree(ROOT / "build", ignore_errors=True)  # what an earlier build left would be packed too
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = out.glob("*.whl")
    return set(zipfile.ZipFile(built).namelist())


def test_the_wheel_holds_the_code_behind_the_links_and_the_demo(wheel):
    for folder in FOLDERS:
        expected = {f"argap/{folder}/{p.name}" for p in (ROOT / folder).glob("*.py")}
        assert expected
        assert expected <= wheel
    for name in (
        "argap/py.typed",
        "argap/reports/templates/report.html.j2",
        "argap/recall/tasks/fda.yaml",
        "argap/recall/tasks/rows.py",
        "argap/demo/tokenizer/tokenizer.json",
        "argap/demo/index/index.json",
        "argap/demo/checkpoints/attention/model.safetensors",
        "argap/demo/checkpoints/base_conv/train.json",
    ):
        assert name in wheel


def test_the_wheel_holds_nothing_at_the_top_level_but_argap(wheel):
    assert {name.split("/")[0] for name in wheel if ".dist-info" not in name.split("/")[0]} == {"argap"}
