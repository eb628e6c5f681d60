"""What `scripts/faults` injects: the cells, and the contracts that they run under.

A cell is a fault family at a phase, step and worker, with a seed, under the
contract that has the part which the fault strikes. Nothing here runs anything.
"""

import dataclasses
import itertools

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

# Updates of a run, and the interval of its checkpoints and evaluations. The
# shorter one is for what can only act at the last step.
NUM_STEPS = 20
NUM_STEPS_SHORT = 15
INTERVAL = 5

# An early and a late place: between two checkpoints, and at one.
BETWEEN = (7, 13)
AT = (5, 15)
# A resume from one needs steps behind it.
RESUMED = (5, 10)

# Who acts before a checkpoint is resumed from makes the resume happen: the
# recording process is killed so many updates later.
KILLED_AFTER = 2

# Longest silence of a worker in milliseconds, and how often it says that it lives.
TIMEOUT_MS, HEARTBEAT_MS = 4000, 200


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


def planned(family, phase, step, seed, worker=None):
    """An item of `faults.plan`."""
    return {"fault": family, "phase": phase, "seed": str(seed), "step": step, "worker": worker}


def places():
    """Every family at each of its phases, early and late."""
    both = lambda family, phase, steps, **more: [Place(family, phase, step, **more) for step in steps]
    found = []
    for phase in ("before_forward", "after_backward"):
        found += both("worker_loss", phase, BETWEEN)
        found += both("worker_loss", phase, BETWEEN, variant="workers", worker=1)
        found += both("collective_timeout", phase, BETWEEN, variant="workers", worker=1)
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
    found += both("precision_policy_change", "after_update", (BETWEEN[0], 10))
    found += both("stale_or_delayed_gradient", "before_exchange", BETWEEN)
    for phase in ("before_exchange", "in_exchange"):
        found += both("stale_or_delayed_gradient", phase, BETWEEN, variant="workers", worker=1)
    found += both("validation_leakage_in_selection", "evaluation", AT)
    for num_steps in (NUM_STEPS_SHORT, NUM_STEPS):
        found.append(Place("validation_leakage_in_selection", "selection", num_steps, num_steps=num_steps))
    return sorted(found, key=lambda place: FAMILIES.index(place.family))


def chosen(families, with_workers):
    """The places of some families; without those that need several workers."""
    return [place for place in places() if place.family in families and (with_workers or place.variant != "workers")]


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
    return 2 if place.variant == "workers" else 1


def twins(cells):
    """What has to run without its fault: each contract, and each that is resumed."""
    keys = {(place.variant, place.num_steps, None) for place in cells}
    keys |= {(place.variant, place.num_steps, place.step) for place in cells if place.is_resumed}
    key = lambda of: (of[0], of[1], of[2] or 0)
    for _, group in itertools.groupby(sorted(keys, key=key), key=key):
        yield next(group)
