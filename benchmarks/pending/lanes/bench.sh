# before the lanes and without MPS: a fault in one MPS client ends all
export PY=python3 R=/tmp/out/bench; mkdir -p $R
note() { echo "== $(date +%T) $*" | tee -a /tmp/out/table.txt; }
cd /tmp/tree; export PYTHONPATH=/tmp/site:/tmp/tree
note fla
timeout 400 python3 -m pytest -v -p no:cacheprovider -m gpu --tb=short tests/train/test_fla_operators.py -k 200_steps > $R/fla.txt 2>&1; tail -n 8 $R/fla.txt | cut -c1-200 >> /tmp/out/table.txt
note kernels
timeout 300 python3 -m pytest -v -p no:cacheprovider -m "" --tb=short tests/kernels/test_toeplitz_convolution.py tests/models/test_speed.py tests/synthetics/test_trainer.py tests/bigram_index/test_index_engines.py > $R/kernels.txt 2>&1; tail -n 8 $R/kernels.txt | cut -c1-200 >> /tmp/out/table.txt
note over
