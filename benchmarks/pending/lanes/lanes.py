"""lanes.py SLOTS DEADLINE JOBS: runs the lines NAME|COMMAND of JOBS, SLOTS at a time, until DEADLINE (unix); pauses while /tmp/quiet exists."""
import os, signal, subprocess, sys, time
slots, deadline, jobs = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
queue = [l.strip().split("|", 1) for l in open(jobs) if l.strip() and not l.startswith("#")]
env, plain = dict(os.environ), {k: v for k, v in os.environ.items() if not k.startswith("CUDA_MPS")}
running, again, paused, rest = [], set(), False, 0.0
log = open("/tmp/out/logs/lanes.log", "a")
def say(*x): print(time.strftime("%H:%M:%S"), *x, file=log, flush=True)
def every(sig):
    for name, p, t in running:
        try: os.killpg(p.pid, sig)
        except ProcessLookupError: pass
open("/tmp/lanes_on", "w").write("x")
since = 0
while (queue or running) and time.time() < deadline:
    quiet = os.path.exists("/tmp/quiet")
    if quiet and not paused:
        every(signal.SIGSTOP); paused, since = True, time.time(); open("/tmp/quieted", "w").write("x")
    elif paused and not quiet:
        os.remove("/tmp/quieted"); every(signal.SIGCONT); paused = False; rest += time.time() - since; say(f"went on after {time.time()-since:.0f} s")
    while not paused and queue and len(running) < slots:
        name, command = queue.pop(0)
        out = open(f"/tmp/out/logs/{name}.log", "ab")
        use = plain if name in again or name.startswith("tests") else env  # a fault in one MPS client ends all
        p = subprocess.Popen(["bash", "-c", command], cwd="/tmp/tree", env=use, stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True)
        running.append((name, p, time.time())); say("start", name)
    for item in running[:]:
        name, p, t = item
        if p.poll() is not None:
            running.remove(item); say("end", name, p.returncode, f"{time.time()-t:.0f} s")
            if p.returncode and name not in again and not name.startswith("tests"):
                again.add(name); queue.insert(0, [name, dict(l.strip().split("|", 1) for l in open(jobs) if "|" in l)[name]])
    time.sleep(0.1)
every(signal.SIGCONT)
for name, p, t in running: say("stop", name, f"{time.time()-t:.0f} s")
every(signal.SIGINT); time.sleep(4); every(signal.SIGKILL)
say(f"lane over, paused {rest:.0f} s")
os.path.exists("/tmp/lanes_on") and os.remove("/tmp/lanes_on")
open("/tmp/lane_over", "w").write("x")
