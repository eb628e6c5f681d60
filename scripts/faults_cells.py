"""What `scripts/faults` injects: the cells, and the contracts that they run under.

A cell is a fault family at a phase, step and worker, with a seed, under the
contract that has the part which the fault strikes. The seed decides what the
injector draws, and here the step and the worker. Nothing here runs anything.
"""

import dataclasses

# Families in the order of the campaign protocol.
FAMILIES = (
    "worker_loss",
    "collective_timeout",
    "checkpoint_write_interruption",
    "single_shard_corruption",
    "data_cursor_rewind",
    "data_cursor_skip",
    "rng_state_loss",
    "scheduler_state_loss",
    "loss_scaler_loss",
    "precision_policy_change",
    "topology_change",
    "stale_or_delayed_gradient",
    "validation_leakage_in_selection",
)

# What follows a fault; all is tried under the first.
QUALIFIED = "restart_from_last_qualified"
POLICIES = ("restart_from_last_validated", QUALIFIED, "roll_back", "refuse")

# Updates of a run, and the interval of its checkpoints and evaluations.
NUM_STEPS = 20
INTERVAL = 5

# An early and a late place, between two checkpoints and at one: the seeds take
# the steps of each in turn.
BETWEEN = ((7, 9, 6, 8), (13, 16, 12, 18))
AT = ((5, 10), (15, 20))
# A resume from one needs steps behind it.
RESUMED = ((5, 10), (10, 15))
# Last steps of runs whose selection is struck.
LAST = ((15, 10), (NUM_STEPS, 25))

# Who acts before a checkpoint is resumed from makes the resume happen: the
# recording process is killed so many updates later.
KILLED_AFTER = 2

# Workers of contracts that have several: so many that a seed can choose one, and
# how many fewer execute an update.
NUM_WORKERS = 4

# Longest silence of a worker in milliseconds, and how often it says that it lives.
TIMEOUT_MS, HEARTBEAT_MS = 4000, 200

# What leaves nothing of its damage in the record or the store, because the
# trainer sees it in any case and goes back to a state before it: a process that
# is gone, an answer that is late, a save that did not come to its end, a frame of
# another step. The audit sees the attempt that it stopped (GL230), which rejects
# nothing; all else it has to find by itself, and to reject.
STOPS = {
    ("worker_loss", "before_forward"),
    ("worker_loss", "after_backward"),
    ("collective_timeout", "before_forward"),
    ("collective_timeout", "after_backward"),
    ("checkpoint_write_interruption", "shard_written"),
    ("checkpoint_write_interruption", "staged"),
    ("checkpoint_write_interruption", "renamed"),
    ("single_shard_corruption", "staged"),
    ("stale_or_delayed_gradient", "in_exchange"),
}


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a family acts, and under which contract."""

    family: str
    phase: str
    step: int
    variant: str = "plain"
    worker: int | None = None
    num_steps: int = NUM_STEPS
    # Whether a second fault makes an attempt resume behind this one.
    is_resumed: bool = False

    def name(self):
        """For messages and folders."""
        worker = "" if self.worker is None else f"-worker{self.worker}"
        worker = "-workers" if self.variant == "workers" and not worker else worker
        return f"{self.family}-{self.phase}-{self.step}{worker}"

    def companion(self):
        """The fault that makes the resume happen."""
        return planned("worker_loss", "before_forward", self.step + KILLED_AFTER, 0)

    def plan(self, seed, is_resumed):
        """The plan of a cell, this fault first."""
        plan = [planned(self.family, self.phase, self.step, seed, self.worker)]
        return plan + ([self.companion()] if is_resumed else [])

    def needs_resume(self):
        """Whether it acts, and not only shows, in a resume."""
        return self.phase == "restore"

    def is_a_stop(self):
        """Whether it stops an attempt and leaves nothing else."""
        return (self.family, self.phase) in STOPS

    def is_told_by_trainer_alone(self):
        """Whether the audit sees the attempt that stopped, and not why: of other workers the record has what they gave, and no more."""
        of_another = self.family == "worker_loss" and self.variant == "workers" and self.worker not in (None, 0)
        return of_another or (self.family, self.phase) == ("stale_or_delayed_gradient", "in_exchange")

    def is_seen_by_probe_alone(self):
        """Whether its damage is in numbers alone, which only a second execution can tell from others."""
        is_saved = self.phase == "after_update" and self.step % INTERVAL == 0
        return self.family == "precision_policy_change" and not is_saved


def planned(family, phase, step, seed, worker=None):
    """An item of `faults.plan`."""
    return {"fault": family, "phase": phase, "seed": str(seed), "step": step, "worker": worker}


def places(seed):
    """Every family at each of its phases, early and late, where a seed from 1 has them."""
    turn = seed - 1

    def both(family, phase, steps, is_addressed=False, **more):
        for number, options in enumerate(steps):
            if is_addressed:
                # The recording process is no worker that another one waits for.
                more["worker"] = 1 + (turn + number) % (NUM_WORKERS - 1)
            yield Place(family, phase, options[turn % len(options)], **more)

    found = []
    of_worker = {"variant": "workers", "is_addressed": True}
    for phase in ("before_forward", "after_backward"):
        found += both("worker_loss", phase, BETWEEN)
        found += both("worker_loss", phase, BETWEEN, **of_worker)
        found += both("collective_timeout", phase, BETWEEN, **of_worker)
    found += both("worker_loss", "before_forward", BETWEEN, variant="workers", worker=0)
    for phase in ("shard_written", "staged", "renamed"):
        found += both("checkpoint_write_interruption", phase, AT)
    found += both("single_shard_corruption", "staged", AT)
    found += both("single_shard_corruption", "validated", RESUMED, is_resumed=True)
    damaged = {
        "data_cursor_rewind": "plain",
        "data_cursor_skip": "plain",
        "rng_state_loss": "stream",
        "scheduler_state_loss": "plateau",
        "loss_scaler_loss": "scaler",
        "precision_policy_change": "plain",
        "topology_change": "workers",
    }
    for family, variant in damaged.items():
        found += both(family, "before_forward", BETWEEN, variant=variant)
        found += both(family, "restore", RESUMED, variant=variant, is_resumed=True)
    # At a checkpoint the rounding is in the state that is saved; elsewhere it is not.
    found += both("precision_policy_change", "after_update", (BETWEEN[0], AT[0]))
    found += both("stale_or_delayed_gradient", "before_exchange", BETWEEN)
    for phase in ("before_exchange", "in_exchange"):
        found += both("stale_or_delayed_gradient", phase, BETWEEN, **of_worker)
    found += both("validation_leakage_in_selection", "evaluation", AT)
    for place in both("validation_leakage_in_selection", "selection", LAST):
        found.append(dataclasses.replace(place, num_steps=place.step))
    return sorted(found, key=lambda place: FAMILIES.index(place.family))


def chosen(families, num_seeds, with_workers, with_resumed):
    """Places of some families with their seeds; without those that need several workers, or an attempt behind the first."""

    def is_chosen(place):
        is_possible = (with_workers or place.variant != "workers") and (with_resumed or not place.is_resumed)
        return place.family in families and is_possible

    found = [(place, seed) for seed in range(1, num_seeds + 1) for place in places(seed) if is_chosen(place)]
    return sorted(found, key=lambda of: FAMILIES.index(of[0].family))


def capture(contract, *classes):
    """Declares state classes as captured."""
    for declared in contract["state_classes"]:
        if declared["class"] in classes:
            declared["not_applicable"] = None


def vary(contract, place, recovery):
    """Gives a contract of the preset `tiny` the part that a place needs."""
    contract["faults"]["recovery"] = recovery
    contract["budget"].update(max_attempts=12, max_steps=place.num_steps)
    contract["stopping"] = {"kind": "at_step", "step": place.num_steps}
    contract["checkpoints"]["every_steps"] = INTERVAL
    contract["evaluation"]["streams"][0]["every_steps"] = INTERVAL
    contract["floors"] = {"free_disk_bytes": 0, "free_memory_bytes": 0}
    if place.variant == "stream":
        contract["dropout_draws"] = {"scheme": "philox_stream/1"}
        capture(contract, "rng_cpu")
    elif place.variant == "plateau":
        # No evaluation is better by so much, so that the rate falls at each.
        for group in contract["schedule"]:
            group["shape"] = {
                "kind": "plateau", "cooldown": 0, "factor": 0.5, "floor": 1e-5, "min_delta": 7.0,
                "patience": 0, "rate": 0.003, "stream": contract["evaluation"]["streams"][0]["name"],
            }
        capture(contract, "scheduler")
    elif place.variant == "scaler":
        contract["numerics"]["compute_dtype"] = "f16"
        contract["numerics"]["loss_scaler"] = {"backoff": 0.5, "growth": 2, "growth_interval": 3, "initial": 1024}
        capture(contract, "loss_scaler")
    elif place.variant == "workers":
        contract["topology"]["collective"] = {
            "heartbeat_ms": HEARTBEAT_MS, "replica_digest_every_steps": 1, "timeout_ms": TIMEOUT_MS,
        }


def num_workers(place):
    """What `ledger init --workers` makes a contract for."""
    return NUM_WORKERS if place.variant == "workers" else 1


def twin_of(place, is_resumed):
    """What tells a cell's contract without its fault from others."""
    return place.variant, place.num_steps, place.step if is_resumed else None


def twins(cells):
    """What has to run without its fault: each contract, and each that is resumed; and whether a probe looks at it."""
    found = {}
    for place in cells:
        for is_resumed in {False, place.is_resumed}:
            key = twin_of(place, is_resumed)
            found[key] = found.get(key, False) or place.is_seen_by_probe_alone()
    return sorted(found.items(), key=lambda of: (of[0][0], of[0][1], of[0][2] or 0))
