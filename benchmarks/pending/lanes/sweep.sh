# sweep.sh NAME...: groups of figure 2
for n in "$@"; do python3 -m argap synthetics sweep /tmp/dev/f/f-$n.yaml --device cuda --compile --out /tmp/tree/results/mqar/f-$n || exit 1; done
