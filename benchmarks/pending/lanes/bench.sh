export PY=python3 R=/tmp/out/bench; mkdir -p $R
note() { echo "== $(date +%T) $*" | tee -a /tmp/out/table.txt; }
cd /tmp/tree; export PYTHONPATH=/tmp/site:/tmp/tree
note tests  # -m "" also runs those marked gpu, which the project's options deselect
timeout 240 python3 -m pytest -q -p no:cacheprovider -m "" --tb=short tests/kernels/test_delta_rule_kernel.py tests/kernels/test_toeplitz_convolution.py -k "few_heads or wide_keys or toeplitz" > $R/kernel-tests.txt 2>&1; tail -n 8 $R/kernel-tests.txt >> /tmp/out/table.txt
note score
timeout 60 python3 benchmarks/score.py --models "h3" --json /tmp/warm.json > $R/score-warm.txt 2>&1
bash /tmp/dev/quiet.sh on; timeout 100 python3 benchmarks/score.py --models "hyena,h3" --json $R/score.json > $R/score.txt 2>&1; bash /tmp/dev/quiet.sh off; tail -n 8 $R/score.txt | cut -c1-250 >> /tmp/out/table.txt
note over
