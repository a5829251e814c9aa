"""The page's numbers are those of argap's tables."""

import json
import math
import shutil
import subprocess

import pytest

from argap.records import Estimate
from argap.reports.tables.numbers import loss, loss_name
from argap.view.app import PAGE

FIGURES = [
    *((9, nll, math.exp(nll)) for nll in (0.0, 0.6931, 2.399, 7.2, 20.0)),
    (9, 800.0, None),
    (0, None, None),
    (9, None, None),  # infinite
]
SCORES = [Estimate("m", "all", "all", n, 1.0, nll, ppl) for n, nll, ppl in FIGURES]


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
@pytest.mark.parametrize("unit", ["token", "byte"])
def test_losses_are_written_as_in_tables(tmp_path, unit):
    (tmp_path / "numbers.mjs").write_text((PAGE / "numbers.js").read_text())
    given = [{"nll": each.nll, "ppl": each.ppl, "n": each.n} for each in SCORES]
    call = f'[lossName("{unit}"), ...{json.dumps(given)}.map((each) => loss(each, "{unit}"))]'
    script = f'import {{ loss, lossName }} from "./numbers.mjs"; console.log(JSON.stringify({call}))'
    done = subprocess.run(
        ["node", "--input-type=module", "-e", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == [loss_name(unit), *(loss(each, unit) for each in SCORES)]
