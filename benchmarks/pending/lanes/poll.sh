# poll.sh SECONDS: waits, then brings what is new since the last poll
cd /tmp/tree; end=$((SECONDS+$1))
while [ $SECONDS -lt $end ]; do [ -e /tmp/lane_over ] && [ -e /tmp/bench_over ] && break; sleep 1; done
python3 /tmp/dev/fetch.py "$OUT"
tail -n 50 /tmp/out/logs/lanes.log; cat /tmp/out/logs/lane.txt | tail -5
for f in /tmp/out/logs/t2-*.log /tmp/out/logs/m-*.log /tmp/out/logs/f-*.log /tmp/out/logs/sw-*.log /tmp/out/logs/tests-*.log; do [ -e $f ] && echo "$f $(tail -c 150 $f | tr '\r\n' '  ')"; done
tail -n 130 /tmp/out/table.txt 2>/dev/null
nvidia-smi --query-gpu=utilization.gpu,memory.used --format=csv,noheader
