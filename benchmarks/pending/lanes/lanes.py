"""lanes.py GPU SLOTS DEADLINE JOBS: runs the lines NAME|COMMAND of JOBS, SLOTS at a time, until DEADLINE (unix)."""
import os, signal, subprocess, sys, time
gpu, slots, deadline, jobs = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
queue = [l.strip().split("|", 1) for l in open(jobs) if l.strip() and not l.startswith("#")]
env = {**os.environ, "CUDA_VISIBLE_DEVICES": gpu}
running = []
log = open(f"/tmp/out/logs/lanes-{gpu}.log", "a")
def say(*x):
    print(time.strftime("%H:%M:%S"), *x, file=log, flush=True)
while (queue or running) and time.time() < deadline:
    while queue and len(running) < slots:
        name, command = queue.pop(0)
        out = open(f"/tmp/out/logs/{name}.log", "ab")
        p = subprocess.Popen(["bash", "-c", command], cwd="/tmp/tree", env=env, stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True)
        running.append((name, p, time.time())); say("start", name)
    for item in running[:]:
        name, p, t = item
        if p.poll() is not None:
            running.remove(item); say("end", name, p.returncode, f"{time.time()-t:.0f} s")
            open("/tmp/out/logs/done.txt", "a").write(f"{name} {p.returncode} {time.time()-t:.0f}\n")
    time.sleep(0.5)
for name, p, t in running:
    say("stop", name, f"{time.time()-t:.0f} s")
    try: os.killpg(p.pid, signal.SIGINT)
    except ProcessLookupError: pass
time.sleep(8)
for name, p, t in running:
    try: os.killpg(p.pid, signal.SIGKILL)
    except ProcessLookupError: pass
say("lane over")
open(f"/tmp/lane{gpu}_over", "w").write("x")
