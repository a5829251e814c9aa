# lane.sh SLOTS DEADLINE JOBS SUITES...
cd /tmp/tree; slots=$1; deadline=$2; jobs=$3; shift 3
(for s in "$@"; do python3 /tmp/dev/prepare.py $s & done; wait) > /tmp/out/logs/prepare.log 2>&1 &
mkdir -p /tmp/mps /tmp/mpslog
export CUDA_MPS_PIPE_DIRECTORY=/tmp/mps CUDA_MPS_LOG_DIRECTORY=/tmp/mpslog
nvidia-cuda-mps-control -d
if timeout 60 python3 -c "import torch; x=torch.randn(999,999,device='cuda'); print((x@x).sum().item())"; then echo mps works; else echo mps fails; unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY; fi
wait %1; touch /tmp/prepared
date +%T; python3 /tmp/dev/lanes.py $slots $deadline $jobs
