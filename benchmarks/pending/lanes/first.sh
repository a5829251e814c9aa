# first.sh SECONDS WAIT: starts lanes and the bench for SECONDS in the background, waits WAIT and fetches
. .dev/setup.sh
deadline=$(($(date +%s)+$1))
setsid bash /tmp/dev/lane.sh 6 $deadline /tmp/dev/jobsB suites/table1-7m.yaml > /tmp/out/logs/lane.txt 2>&1 < /dev/null &
(setsid bash -c "timeout $1 bash /tmp/dev/bench.sh; bash /tmp/dev/quiet.sh off; touch /tmp/bench_over" > /tmp/out/logs/bench.txt 2>&1 < /dev/null &)
bash /tmp/dev/poll.sh $2
