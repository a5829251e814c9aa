#!/bin/bash
# On one H200, in the root of the repository: bash firststep.sh (OUT: where results go; LIMIT: seconds in all [330]).
# Writes $OUT/tuned_hopper.json, $OUT/train.json, $OUT/firststep.log and, if time remains, $OUT/parts.json.
set -u
SECONDS=0
LIMIT=${LIMIT:-330}
OUT=${OUT:-/tmp/firststep-out}
W=$(mktemp -d)
PY=${PY:-python3}
TABLE=argap/train/tuned_hopper.json
mkdir -p "$OUT"
exec > >(tee -a "$OUT/firststep.log") 2>&1
export PYTHONPATH=$PWD:${PYTHONPATH:-} PYTHONUNBUFFERED=1 FLA_CACHE_RESULTS=0
unset ARGAP_AUTOTUNE
left() { echo $((LIMIT - SECONDS - ${1:-0})); }
say() { echo "[$SECONDS s] $*"; }
fresh() { export TRITON_CACHE_DIR=$W/$1/triton TORCHINDUCTOR_CACHE_DIR=$W/$1/inductor; }

say "versions"
$PY -c "from argap.train.tuned import versions; print(versions())"

# 1. Record DeltaNet and GLA with a fresh cache.
fresh record
timeout $(left 170) $PY benchmarks/tune.py --architectures delta_net,gla
cp $TABLE "$OUT/"
say "recorded: $(grep -c num_warps $TABLE) choices"

# 2. Each row as on a machine that never trained: caches of its own. Their rows become one train.json.
measure() {  # NAME ROW
  fresh "$1"
  timeout $(left 5) $PY benchmarks/train.py --rows "$2" --json "$W/$1.json" ${CHECK:-}
  $PY - "$OUT/train.json" "$W"/{delta_net,gla,attention}.json <<'P'
import json, sys
from pathlib import Path
sys.path.insert(0, "benchmarks")
from argap.atomic import read_json, write_json
from train import add_ratios
out, *parts = map(Path, sys.argv[1:])
found = [read_json(part) for part in parts if part.is_file()]
if found:
    rows = [row for each in reversed(found) for row in each["rows"]]  # attention first
    add_ratios(rows)
    write_json(out, found[-1] | {"rows": rows})
P
  say "measured $2"
}
measure attention "attention native"
measure gla "gla fla"
measure delta_net "delta_net fla"

# 3. If time remains: the other operators' choices.
if [ "$(left)" -gt 45 ]; then
  fresh record
  timeout $(left 5) $PY benchmarks/tune.py --architectures linear_attention,retnet
  cp $TABLE "$OUT/"
  say "recorded: $(grep -c num_warps $TABLE) choices"
fi

# 4. If time remains: where GLA's time to the first step goes.
if [ "$(left)" -gt 65 ]; then
  fresh parts
  timeout $(left 2) $PY - "$OUT/parts.json" <<'P'
import sys
sys.path.insert(0, "benchmarks")
import json, time
from collections import Counter
from measured import seconds_since_start
marks, last = {}, [0.0]
def mark(name):
    now = seconds_since_start()
    marks[name] = round(now - last[0], 2)
    last[0] = now
    json.dump({"parts_s": marks}, open(sys.argv[1], "w"), indent=2)
import torch
mark("import torch")
import train as bench
import triton
from torch._dynamo.utils import compile_times
from argap.models import ArgapForCausalLM
from argap.models.sizes import build_at
from argap.train.fla_operators import FlaOperators, use_fla
mark("import argap, transformers")
operators = FlaOperators.load()
mark("import flash-linear-attention")
kernels = Counter()
def listen(*, src, metadata, metadata_group, times, cache_hit):
    kernels[f"{metadata.get('name', '?')}{' (cached)' if cache_hit else ''}"] += times.total
triton.knobs.compilation.listener = listen
torch.manual_seed(0)
model = ArgapForCausalLM(build_at("gla", "360m", seq_len=2048))
mark("model on the CPU")
use_fla(model, operators)
config = bench.train_config(2048, 8, "gla", True)
torch.zeros(1, device="cuda")
mark("CUDA")
trainer = bench.new_trainer(model, config, False, True)
windows = bench.random_windows(trainer)
torch.cuda.synchronize()
mark("model to the GPU, optimizer")
batch = trainer._to_device(windows.in_training_order(0, 8))
nll, _ = trainer.objective(batch[:, :-1], batch[:, 1:])
torch.cuda.synchronize()
mark("forward")
(nll / nll.numel()).backward()
torch.cuda.synchronize()
mark("backward")
trainer.optimizer.step()
trainer.optimizer.zero_grad(set_to_none=True)
torch.cuda.synchronize()
mark("optimizer")
trainer.step(windows, 0).tolist()
mark("second step")
names, seconds = compile_times(repr="csv", aggregate=True)
compiler = sorted(zip(names, map(float, seconds)), key=lambda x: -x[1])[:15]
slow = {n: round(t / 1e6, 2) for n, t in kernels.most_common(40)}
total = round(sum(kernels.values()) / 1e6, 1)
json.dump({"parts_s": marks, "compiler_s": compiler, "triton_in_process_s": slow, "triton_total_s": total}, open(sys.argv[1], "w"), indent=2)
P
  say "parts"; cat "$OUT/parts.json" 2>/dev/null
fi

say "table"
$PY - "$OUT" <<'P'
import json, sys
from pathlib import Path
out = Path(sys.argv[1])
path = out / "train.json"
for row in json.loads(path.read_text())["rows"] if path.is_file() else []:
    print("{:<18} first step {:>6} s  {:>8} tokens/s  ratio {:<6} kernels tuned {}  {}".format(
        row["row"], row.get("first_step_s", "-"), row.get("tokens_per_s", "-"), row.get("ratio", "-"),
        row.get("kernels_tuned", "-"), row.get("error", "")))
table = json.loads((out / "tuned_hopper.json").read_text())
print(table["made_with"], {kernel.split(".")[-1]: len(each) for kernel, each in table["choices"].items()})
P
rm -rf "$W"
say "done"
