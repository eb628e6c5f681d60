"""Effective training time under faults, for `scripts/bench`.

A run is killed with SIGKILL at times that a seeded exponential law draws, and
started again at once, for a given time. Its efficiency is the time of the updates
that its last checkpoint holds (of each step the last execution), over the wall
time that passed, both of the same run, so that what else the machine does is in
both. That is measured at the checkpoint interval that Daly gives for the cost of
a checkpoint and the rate of faults, at half and at twice of it, and compared with
Daly's model.

J. W. Young, "A first order approximation to the optimum checkpoint interval",
Communications of the ACM 17(9), 1974. J. T. Daly, "A higher order estimate of
the optimum checkpoint interval for restart dumps", Future Generation Computer
Systems 22(3), 2006.
"""

import json
import math
import random
import statistics
import subprocess
import time

# Hidden size, layers, heads, context, examples of a microbatch, microbatches:
# some 10 ms a step on 2 cores.
SHAPE = (64, 2, 2, 80, 4, 1)

# Mean time between two kills in seconds, the same draws for each interval.
MEAN_S, SEED = 2.5, 20260

# Seconds that each measured run is given.
WALL_S, WALL_S_QUICK = 20.0, 10.0

# No run comes to its end.
NUM_STEPS = 1_000_000

# Updates of the run that costs are taken from, and its checkpoint interval.
CALIBRATION_STEPS, CALIBRATION_INTERVAL = 240, 20

# Starts that a run is given.
MAX_STARTS = 1_000

# Times the optimum.
FACTORS = {"half": 0.5, "optimum": 1.0, "double": 2.0}


def young_s(checkpoint_s, mean_s):
    """Young's interval: seconds of updates between two checkpoints."""
    return math.sqrt(2 * checkpoint_s * mean_s)


def daly_s(checkpoint_s, mean_s):
    """Daly's, of higher order; the mean itself where a checkpoint costs more than twice that."""
    if checkpoint_s >= 2 * mean_s:
        return mean_s
    ratio = checkpoint_s / (2 * mean_s)
    return young_s(checkpoint_s, mean_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - checkpoint_s


def predicted(interval_s, checkpoint_s, restart_s, mean_s):
    """Efficiency by Daly's complete model, in which a fault may strike a checkpoint and a restart too."""
    growth = math.expm1((interval_s + checkpoint_s) / mean_s)
    return interval_s / (mean_s * math.exp(restart_s / mean_s) * growth)


def entries(ledger, folder, kind):
    """Entries of a kind."""
    command = [str(ledger), "list", str(folder / "run.db"), "--kind", kind, "--json"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return [json.loads(line) for line in printed.splitlines()]


def start(trainer, folder):
    # Its messages go nowhere: a pipe would wake this process at each line.
    command = [str(trainer), "run", "--ledger", str(folder / "run.db"), "--quiet"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def calibrate(init, ledger, trainer, work):
    """Seconds of an update, of a checkpoint, and of a restart, as the record has them."""
    folder = init(work / "calibration", CALIBRATION_STEPS, CALIBRATION_INTERVAL)
    child = start(trainer, folder)
    # Half of the run; what is read here is looked at again behind the end.
    while len(entries(ledger, folder, "checkpoint.validated")) < CALIBRATION_STEPS // CALIBRATION_INTERVAL // 2:
        if child.poll() is not None:
            break
        time.sleep(0.02)
    child.kill()
    child.wait()
    restarted = time.time()
    if start(trainer, folder).wait() != 0:
        raise ValueError(f"{folder}: the run did not complete")
    steps = entries(ledger, folder, "step")
    second = [entry for entry in steps if entry["attempt"] == 2]
    if not second:
        raise ValueError(f"{folder}: the run ended before it could be killed")
    first = second[0]
    end = entries(ledger, folder, "attempt.end")[-1]["body"]["obs"]["cost"]
    num_saved = sum(entry["attempt"] == 2 for entry in entries(ledger, folder, "checkpoint.validated"))
    return {
        "step_s": statistics.median(entry["body"]["obs"]["duration_us"] for entry in second) / 1e6,
        "checkpoint_s": end["checkpoint_us"] / num_saved / 1e6,
        "restart_s": first["time_us"] / 1e6 - first["body"]["obs"]["duration_us"] / 1e6 - restarted,
    }


def survive(trainer, folder, limit_s):
    """Wall seconds and kills of a run that is given so long."""
    draws = random.Random(SEED)
    began, num_kills = time.perf_counter(), 0
    while (left_s := began + limit_s - time.perf_counter()) > 0:
        child = start(trainer, folder)
        try:
            child.wait(timeout=min(left_s, draws.expovariate(1 / MEAN_S)))
            raise ValueError(f"{folder}: the trainer ended without being killed")
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            num_kills += 1
    # The last kill is the end of the measurement.
    return time.perf_counter() - began, num_kills - 1


def measure(init, ledger, trainer, work, is_quick):
    """Efficiency at the optimum, at half and at twice of it, beside the model's. `init` makes a frozen run's folder."""
    costs = calibrate(init, ledger, trainer, work)
    step_s, checkpoint_s, restart_s = costs["step_s"], costs["checkpoint_s"], costs["restart_s"]
    optimum_s = daly_s(checkpoint_s, MEAN_S)
    found = {**costs, "mean_s": MEAN_S, "seed": SEED}
    found |= {"young_s": young_s(checkpoint_s, MEAN_S), "daly_s": optimum_s, "intervals": {}}
    for name, factor in FACTORS.items():
        every_steps = max(1, round(factor * optimum_s / step_s))
        folder = init(work / f"faults-{name}", NUM_STEPS, every_steps)
        wall_s, num_kills = survive(trainer, folder, WALL_S_QUICK if is_quick else WALL_S)
        recovered = entries(ledger, folder, "fault.recovered")
        # In the order of attempts, so that the last execution of a step stays.
        counting = {entry["step"]: entry["body"]["obs"]["duration_us"] for entry in entries(ledger, folder, "step")}
        last_saved = max(entry["step"] for entry in entries(ledger, folder, "checkpoint.validated"))
        useful_s = sum(duration_us for step, duration_us in counting.items() if step <= last_saved) / 1e6
        found["intervals"][name] = {
            "every_steps": every_steps,
            "interval_s": every_steps * step_s,
            "useful_s": useful_s,
            "wall_s": wall_s,
            "num_kills": num_kills,
            "num_steps_lost": sum(entry["body"]["det"]["num_steps_lost"] for entry in recovered),
            "efficiency": useful_s / wall_s,
            "predicted": predicted(every_steps * step_s, checkpoint_s, restart_s, MEAN_S),
        }
    return found
