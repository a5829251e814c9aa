"""Delta rule, keys of 256: variants against float64, old kernel and FLA. PYTHONPATH=<repo tree> python delta256.py [OUT.json] [SECONDS]"""
import glob, json, os, subprocess, sys, tempfile, time

START = time.time()
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
WORKER = sys.argv[2:] if sys.argv[1:2] == ["--worker"] else None
OUT = sys.argv[1] if len(sys.argv) > 1 and not WORKER else "delta256.json"
LIMIT = float(sys.argv[2]) if len(sys.argv) > 2 and not WORKER else 100.0
CPU = "DRY" in os.environ  # a dry run in the interpreter
DEV = "cpu" if CPU else "cuda"

import torch
import torch.nn.functional as F
import triton
from triton.testing import do_bench

from argap.kernels import delta_rule as D
from argap.kernels import delta_rule_inverse as I
from argap.kernels.launch import Launch
from old_delta import delta_rule as OLD

assert D.LAUNCHES.by_device["hopper"]["256"] is not None
if CPU:
    D.runs_kernels = OLD.runs_kernels = lambda *a: True
GPU = "cpu" if CPU else torch.cuda.get_device_name()
WORKER or print(torch.__version__, triton.__version__, GPU, D.__file__, flush=True)
result = {"gpu": GPU, "torch": torch.__version__, "triton": triton.__version__, "check": [], "parts": [], "times": []}


def left():
    return LIMIT - (time.time() - START)


def save():
    json.dump(result, open(OUT, "w"), indent=1)


# name: (scan: BV, warps, stages, TRANSPOSED; scores first?)
VARIANTS = {
    "S64w4s2": (64, 4, 2, 0, True),
    "S64w8s2": (64, 8, 2, 0, True),
    "S32w4s2": (32, 4, 2, 0, True),
    "S32w8s2": (32, 8, 2, 0, True),
    "S32w4s1": (32, 4, 1, 0, True),
    "T64w4s2": (64, 4, 2, 1, True),
    "T128w8s2": (128, 8, 2, 1, True),
    "T32w4s2": (32, 4, 2, 1, True),
    "S64w4s1": (64, 4, 1, 0, True),
    "S64w4s2-own": (64, 4, 2, 0, False),
    "old-form": (32, 4, 1, 1, False),
}
INVERSES = {"BC64w1": (64, 1), "BC32w1": (32, 1), "BC64w4": (64, 4), "BC32w2": (32, 2), "BC256w4 (old)": (256, 4)}
TABLE = D.LAUNCHES.by_device["any" if CPU else "hopper"]
ITABLE = I.LAUNCHES.by_device["any"]
assert D.LAUNCHES.by_device is not None
SCORES = D.chunk_scores


def choose(name):
    BV, warps, stages, transposed, first = VARIANTS[name]
    TABLE["256"] = Launch({"BV": BV, "TRANSPOSED": transposed}, warps, stages)
    D.chunk_scores = SCORES if first else (lambda q, k: None)


def choose_inverse(name):
    BC, warps = INVERSES[name]
    ITABLE["256"] = Launch({"BC": BC}, warps=warps, stages=1)


def error(a, b):
    return float(((a.double() - b).norm() / b.norm()).nan_to_num(nan=float("inf")))


def draw(B, T, H, K, V, dtype, unit=True):
    q, k = (torch.randn(B, T, H, K, device=DEV, dtype=dtype) for _ in range(2))
    v = torch.randn(B, T, H, V, device=DEV, dtype=dtype)
    beta = torch.rand(B, T, H, device=DEV, dtype=dtype)
    if unit:
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    return q, k, v, beta


def turn(*xs):
    return [x.transpose(1, 2) for x in xs]


# (i) correctness, one process per variant: they compile at the same time, and a device error ends only one ----------
BF, FP = torch.bfloat16, torch.float16
CASES = [
    (256, 256, BF, 2048, False, False), (256, 256, BF, 2048, True, False), (256, 256, BF, 1000, True, True),
    (192, 192, BF, 321, True, True), (256, 256, FP, 640, False, True), (192, 192, FP, 130, True, False),
    (256, 200, BF, 65, False, False),
]
if CPU:
    CASES = [(256, 40, FP, 70, True, True), (192, 24, FP, 65, False, False)]
TOL = {BF: 1e-2, FP: 2e-3}


HELPERS = 4


def rotate(first):
    """FLA tries its launch configurations one after another; helpers start elsewhere, so that all are soon compiled."""
    from triton.runtime import autotuner

    init = autotuner.Autotuner.__init__

    def rotated(self, fn, arg_names, configs, *rest, **options):
        at = len(configs or ()) * first // HELPERS
        init(self, fn, arg_names, configs[at:] + configs[:at] if at else configs, *rest, **options)

    autotuner.Autotuner.__init__ = rotated


def worker(name, path):
    """Checks a variant, an inverse, "main" or "FLA"; one JSON line for each case and seed."""
    fla = name.startswith("FLA")
    if fla:
        rotate(int(name[4:] or 0))
        from fla.ops.delta_rule import chunk_delta_rule
    function = OLD.delta_rule if name == "main" else D.delta_rule
    if name in VARIANTS:
        choose(name)
    elif name in INVERSES:
        choose_inverse(name)
    with open(path, "w", buffering=1) as out:
        for number, (size, V, dtype, T, normalize, state) in enumerate(CASES[:3] if fla else CASES):
            for seed in range(3):
                torch.manual_seed(1000 * int(os.environ["D256_SEED"]) + 10 * number + seed)
                B, H = (1, 2) if CPU else (2, 8)
                x = draw(B, T, H, size, V, dtype, unit=not normalize)
                h0 = 0.3 * torch.randn(B, H, size, V, device=DEV) if state else None
                y, ht = D.delta_rule_reference(*turn(*(t.double() for t in x)), normalize=normalize, state=None if h0 is None else h0.double())
                row = {"variant": name, "case": f"K{size} V{V} {str(dtype)[6:]} T{T} norm{int(normalize)} state{int(state)}", "seed": seed}
                if fla:
                    o, s = chunk_delta_rule(*x, scale=1.0, initial_state=h0, output_final_state=True, use_qk_l2norm_in_kernel=normalize)
                    row |= {"y": error(o.transpose(1, 2), y), "state": error(s, ht), "ok": True}
                else:
                    a = function(*turn(*x), normalize=normalize, state=h0)
                    again = [function(*turn(*x), normalize=normalize, state=h0) for _ in range(1 if CPU else 5)]
                    alone = function(*turn(*(t[-1:] for t in x)), normalize=normalize, state=None if h0 is None else h0[-1:])
                    row |= {"y": error(a[0], y), "state": error(a[1], ht)}
                    row["repeats"] = all(torch.equal(a[i], r[i]) for r in again for i in (0, 1))
                    row["batch"] = all(torch.equal(alone[i], a[i][-1:]) for i in (0, 1))
                    row["ok"] = row["repeats"] and row["batch"] and max(row["y"], row["state"]) < TOL[dtype]
                out.write(json.dumps(row) + "\n")
    print("done", flush=True)


if WORKER:
    worker(*WORKER)
    sys.exit()

os.environ.setdefault("D256_SEED", str(int(START) % 100000))
folder = tempfile.mkdtemp()
names = ["FLA", *(f"FLA+{n}" for n in range(1, HELPERS)), "main", *VARIANTS, *(n for n in INVERSES)]
if CPU:
    names = ["main", "S32w4s2", "T64w4s2", "BC32w1"]
running = {}
for number, name in enumerate(names):
    log = open(f"{folder}/{number}.log", "w")
    running[name] = (subprocess.Popen([sys.executable, __file__, "--worker", name, f"{folder}/{number}.json"], stdout=log, stderr=log), number)
good, bad, inverses = [], [], []
while running:
    time.sleep(0.2)
    for name, (process, number) in list(running.items()):
        late = left() < 32 and not CPU
        if name.startswith("FLA+") and process.poll() is None and ("FLA" not in running or late):
            process.kill()
            process.wait()
        if name.startswith("FLA+"):
            if process.poll() is not None:
                del running[name]
            continue
        if process.poll() is None and not late:
            continue
        if late:
            process.kill()
            process.wait()
        del running[name]
        path = f"{folder}/{number}.json"
        rows = [json.loads(line) for line in open(path)] if os.path.exists(path) else []
        result["check"] += rows
        whole = process.returncode == 0 and len(rows) == 3 * len(CASES[:3] if name == "FLA" else CASES)
        wrong = [r for r in rows if not r["ok"]]
        worst = ", ".join(f"{d} {max((max(r['y'], r['state']) for r in rows if ' ' + d + ' ' in r['case']), default=0):.2e}" for d in ("bfloat16", "float16"))
        print(f"{'ok  ' if whole and not wrong else 'BAD '} {name:14} worst {worst} ({len(rows)} rows{', LATE' if late else ''}) [{time.time() - START:.0f} s]", flush=True)
        for r in wrong[:3]:
            print("    ", r, flush=True)
        if not whole and not late:
            print("    ", open(f"{folder}/{number}.log").read().strip()[-500:], flush=True)
        if name in VARIANTS:
            (good if whole and not wrong else bad).append(name)
        elif name in INVERSES and whole and not wrong:
            inverses.append(name)
good = [n for n in VARIANTS if n in good]
save()
chunk_delta_rule = None
KNOWN = {512: 1.062, 1024: 1.065, 2048: 1.070, 4096: 1.079, 8192: 1.085, 16384: 1.349}  # FLA in benchmarks/results/kernels.json
try:
    if sum(r["variant"] == "FLA" for r in result["check"]) < 9:
        raise RuntimeError("its worker did not end; its times below are those of kernels.json")
    from fla.ops.delta_rule import chunk_delta_rule
except Exception as e:  # noqa: BLE001
    print("no FLA:", e, flush=True)
if CPU:
    print("dry run ends", good, bad, inverses)
    sys.exit()

# (ii) times -----------------------------------------------------------------------------------------------------
def ms(f, rep=25):
    return do_bench(f, warmup=8, rep=rep, return_mode="median")


x = draw(16, 2048, 8, 256, 256, torch.bfloat16)
q, k, v, beta = turn(*x)
for name in inverses:
    choose_inverse(name)
    t = ms(lambda: I.chunk_inverses(k, beta, None))
    result["parts"].append({"part": "inverse", "variant": name, "ms": t})
    print(f"inverse {name:14} {t:.3f} ms", flush=True)
if inverses:
    best_inverse = min(result["parts"], key=lambda r: r["ms"])["variant"]
    choose_inverse(best_inverse)
    print("inverse used below:", best_inverse)
for warps in (4, 8):
    for stages in (1,):
        I.SCORE_LAUNCHES.by_device["any"]["any"] = Launch({}, warps, stages)
        t = ms(lambda: SCORES(q, k))
        result["parts"].append({"part": "scores", "variant": f"w{warps}", "ms": t})
        print(f"scores w{warps} {t:.3f} ms", flush=True)
I.SCORE_LAUNCHES.by_device["any"]["any"] = Launch({}, 4, 1)
t = ms(lambda: I.inverse_norms(q, k))
print(f"norms {t:.3f} ms", flush=True)

lengths = [2048, 16384, 512, 8192, 1024, 4096]
print(f"{'T':>6} {'main':>7} {'FLA':>7} " + " ".join(f"{n:>11}" for n in good), flush=True)
for T in lengths:
    if left() < 4:
        print("out of time at", T, flush=True)
        break
    torch.manual_seed(T)
    x = draw(2**15 // T, T, 8, 256, 256, torch.bfloat16)
    turned = turn(*x)
    row = {"T": T, "main": ms(lambda: OLD.delta_rule(*turned))}
    if chunk_delta_rule is None:
        row["FLA"] = KNOWN[T]
    else:
        try:
            row["FLA"] = ms(lambda: chunk_delta_rule(*x, scale=1.0))
        except Exception as e:  # noqa: BLE001
            print("FLA failed", str(e)[-200:])
    for name in good:
        if T not in (2048, 16384) and name == "old-form":
            continue
        try:
            choose(name)
            row[name] = ms(lambda: D.delta_rule(*turned))
        except Exception as e:  # noqa: BLE001
            print("FAIL", name, str(e)[-200:], flush=True)
    result["times"].append(row)
    save()
    fla = row.get("FLA", float("nan"))
    print(f"{T:>6} {row['main']:7.3f} {fla:7.3f} " + " ".join(f"{row.get(n, float('nan')):11.3f}" for n in good), flush=True)
    print(f"{'x FLA':>6} {fla / row['main']:7.2f} {'':7} " + " ".join(f"{fla / row.get(n, float('nan')):11.2f}" for n in good), flush=True)

# norms in the kernel, T 2048
if left() > 6 and chunk_delta_rule is not None and good:
    x = draw(16, 2048, 8, 256, 256, torch.bfloat16)
    turned = turn(*x)
    try:
        fla = ms(lambda: chunk_delta_rule(*x, scale=1.0, use_qk_l2norm_in_kernel=True))
        old = ms(lambda: OLD.delta_rule(*turned, normalize=True))
        print(f"norms, T 2048: FLA {fla:.3f} main {old:.3f}", end=" ")
        for name in good[:4]:
            choose(name)
            print(f"{name} {ms(lambda: D.delta_rule(*turned, normalize=True)):.3f}", end=" ", flush=True)
        print()
    except Exception as e:  # noqa: BLE001
        print("norms failed", str(e)[-200:])
save()
rows = result["times"]
full = [n for n in good if all(n in r for r in rows)]
if not rows or not full:
    print("DELTA BAD no variant", bad)
    sys.exit(1)


def score(n):
    p = 1.0
    for r in rows:
        p *= r[n]
    return p ** (1 / len(rows))


best = min(full, key=score)
per = {r["T"]: min(full, key=lambda n: r[n]) for r in rows}
ratios = {r["T"]: round(r["FLA"] / r[best], 2) for r in rows if "FLA" in r}
print("fastest per T", per, "bad", bad)
print(f"DELTA OK best={best} inverse={best_inverse if inverses else None} over FLA {ratios} wrong={bad} [{time.time() - START:.0f} s]")
