# before the lanes start (first.sh waits for bench_over where BENCH_FIRST is set) and without MPS: a fault in one MPS client ends all
export PY=python3 R=/tmp/out/bench; mkdir -p $R
note() { echo "== $(date +%T) $*" | tee -a /tmp/out/table.txt; }
cd /tmp/tree; export PYTHONPATH=/tmp/site:/tmp/tree
note tests
timeout 200 python3 -m pytest -v -p no:cacheprovider -m gpu --tb=short tests/models/test_speed.py tests/synthetics/test_unfinished.py > $R/tests.txt 2>&1; tail -n 8 $R/tests.txt | cut -c1-200 >> /tmp/out/table.txt
note score
timeout 500 python3 benchmarks/score.py --json $R/score.json > $R/score.txt 2>&1; tail -n 40 $R/score.txt | cut -c1-200 >> /tmp/out/table.txt
note over
