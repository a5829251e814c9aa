"""delta_rows.py OUT [--warm]"""
import os, runpy, sys
sys.path.insert(0, "benchmarks")
import torch, kernel_cases.delta_rule as c
import fla.ops.delta_rule
if "--warm" in sys.argv:
    os.environ["ARGAP_AUTOTUNE"] = "1"
    from argap.train.autotuning import compile_at_once; compile_at_once()
else:
    os.system("bash /tmp/dev/quiet.sh on")
c.FIGURE = [(2**p, 8, 256) for p in range(9, 15)] + [(2048, 16, 128)]
c.SHAPES = ()
if "--warm" in sys.argv: c.STEPPED = 0
sys.argv = ["kernels.py", "delta_rule", "--json", sys.argv[1]]
runpy.run_path("benchmarks/kernels.py", run_name="__main__")
