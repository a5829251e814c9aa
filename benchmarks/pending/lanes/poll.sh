# poll.sh SECONDS: waits, then brings what is new since the last poll
cd /tmp/tree; end=$((SECONDS+$1))
while [ $SECONDS -lt $end ]; do [ -e /tmp/lane0_over ] && [ -e /tmp/lane1_over ] && break; sleep 2; done
python3 /tmp/dev/fetch.py "$OUT"
for f in /tmp/out/logs/lanes-*.log; do echo "== $f"; tail -n 25 $f; done
cat /tmp/out/table.txt 2>/dev/null | tail -60
nvidia-smi --query-gpu=utilization.gpu,memory.used --format=csv,noheader
