# firstA.sh SECONDS WAIT: starts lanes for SECONDS in the background, waits WAIT and fetches
. .dev/setup.sh
deadline=$(($(date +%s)+$1))
cat > /tmp/lane0.sh <<X
cd /tmp/tree
python3 /tmp/dev/prepare.py suites/table2-mini.yaml suites/windows-7m.yaml > /tmp/out/logs/prepare.log 2>&1 &
export CUDA_MPS_PIPE_DIRECTORY=/tmp/mps CUDA_MPS_LOG_DIRECTORY=/tmp/mpslog; mkdir -p /tmp/mps /tmp/mpslog
CUDA_VISIBLE_DEVICES=0 nvidia-cuda-mps-control -d; 
if CUDA_VISIBLE_DEVICES=0 timeout 60 python3 -c "import torch; x=torch.randn(999,999,device='cuda'); print((x@x).sum().item())"; then echo mps works; else echo mps fails; unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY; fi
wait
python3 /tmp/dev/lanes.py 0 4 $deadline /tmp/dev/jobs0
X
cat > /tmp/lane1.sh <<X
cd /tmp/tree
CUDA_VISIBLE_DEVICES=1 timeout $1 bash /tmp/dev/bench.sh
python3 /tmp/dev/lanes.py 1 3 $deadline /tmp/dev/jobs1
X
setsid bash /tmp/lane0.sh > /tmp/out/logs/lane0.txt 2>&1 < /dev/null &
setsid bash /tmp/lane1.sh > /tmp/out/logs/lane1.txt 2>&1 < /dev/null &
bash /tmp/dev/poll.sh $2
