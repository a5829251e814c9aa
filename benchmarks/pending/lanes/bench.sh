export B=/tmp/dev PY=python3 PYTHON=python3 R=/tmp/out/bench
mkdir -p $R
mk() { mkdir -p /tmp/t-$1; tar cf - -C /tmp/tree --exclude=./runs --exclude=./results . | tar xf - -C /tmp/t-$1; tar xzf $B/overlay/$1.tgz -C /tmp/t-$1; }
note() { echo "== $(date +%T) $*" | tee -a /tmp/out/table.txt; }
for n in delta256 hyena graphgen firststep products; do mk $n; done
note delta256
cd /tmp/t-delta256; PYTHONPATH=/tmp/site:/tmp/t-delta256 timeout 125 python3 $B/gpu/delta256.py $R/delta256.json 100 > $R/delta256.txt 2>&1; tail -n 30 $R/delta256.txt >> /tmp/out/table.txt
note hyena
OLD=/tmp/tree NEW=/tmp/t-hyena OUT=$R PYTHONPATH=/tmp/site timeout 100 bash $B/gpu/hyena.sh > $R/hyena.txt 2>&1; tail -n 40 $R/hyena.txt >> /tmp/out/table.txt
note generation
cd /tmp/t-graphgen; mkdir -p $R/generation; OUT=$R/generation LIMIT=130 PYTHONPATH=/tmp/site timeout 145 bash $B/gpu/generation.sh > $R/generation.txt 2>&1; tail -n 30 $R/generation.txt >> /tmp/out/table.txt
note firststep
cd /tmp/t-firststep; mkdir -p $R/firststep; OUT=$R/firststep LIMIT=260 PYTHONPATH=/tmp/site timeout 270 bash $B/gpu/firststep.sh > $R/firststep.txt 2>&1; tail -n 30 $R/firststep.txt >> /tmp/out/table.txt
note sweeps
cd /tmp/t-products; RESULT=$R/sweepprofile.json PYTHONPATH=/tmp/site:/tmp/t-products timeout 110 python3 $B/gpu/sweepprofile.py 60 > $R/sweepprofile.txt 2>&1; tail -n 40 $R/sweepprofile.txt >> /tmp/out/table.txt
note over
