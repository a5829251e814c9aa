# member.sh NAME: train, score, recall
set -e
python3 -m argap suite run suites/table1-7m.yaml --member $1 --no-collect
while [ ! -e /tmp/index_ready ]; do sleep 1; done
python3 -m argap recall runs/table1-7m/7m/$1 --data swde=corpora/swde_like.jsonl --data fda=corpora/fda.jsonl --data squad=corpora/squad_qa.jsonl --context 1024 --truncate oracle --index runs/table1-7m/7m/index --batch-size 64 --out /tmp/out/recall/$1
