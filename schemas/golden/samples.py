"""Sample documents for the golden vectors: a contract and entries of every kind.

Digests are those of names, not of files: the vectors are about bytes.
"""

import copy
import hashlib

from formats import b64, contract_json, key_id, pae, public_key, sign

# Secret keys of RFC 8032, section 7.1 (TEST 1, 2, 3 and 1024). Published, so
# worthless outside tests.
SEEDS = {
    "owner": bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60"),
    "trainer": bytes.fromhex("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb"),
    "qualifier": bytes.fromhex("c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7"),
    "validator": bytes.fromhex("f5e5767cf153319517630f226876b86c8160cc583bc013744c6bf255f5cc0ee5"),
}
CONTRACT_TYPE = "application/vnd.governed-ledger.contract+json"
NONCE = "00112233445566ff"
RUST = "rustc 1.95.0 (example)"
TOOL = "ledger 0.1.0"


def blake3(name):
    return "blake3:" + hashlib.sha256(name.encode()).hexdigest()


def sha(name):
    return "sha256:" + hashlib.sha256(name.encode()).hexdigest()


def binding(path, num_bytes):
    return {"digest": blake3(path), "num_bytes": num_bytes, "path": path}


def public(role):
    return {"host": sha("host"), "public": public_key(SEEDS[role]).hex()}


CODE = {"digest": sha("code"), "features": ["flex"], "package": "trainer", "version": "0.1.0"}
ENVIRONMENT = {"architecture": "x86_64", "operating_system": "linux", "rustc": RUST}
PLAN = {"autotune": False, "backend": "burn-flex 0.22.1", "cpu_features": ["avx2", "fma"], "device": "cpu"}


def state_classes():
    reasons = {
        "scheduler": "function_of_step",
        "rng_cpu": "counter_based_randomness",
        "rng_device": "no_device_randomness",
        "loss_scaler": "no_loss_scaling",
        "sampler": "function_of_position",
    }
    names = ["model", "optimizer", "scheduler", "rng_cpu", "rng_device", "loss_scaler"]
    names += ["data_cursor", "sampler", "topology", "compiler_plan"]
    return [{"class": name, "not_applicable": reasons.get(name)} for name in names]


CONTRACT = {
    "architecture": {
        "context_length": 64, "dropout": 0.0, "family": "llama_decoder", "head_dim": 16, "hidden_size": 64,
        "initializer_std": 0.02, "intermediate_size": 192, "num_heads": 4, "num_kv_heads": 2, "num_layers": 2,
        "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tied_embeddings": True, "vocab_size": 256,
    },
    "batch": {"accumulation": 2, "data_parallel": 1, "global_examples": 8, "microbatch_examples": 4},
    "budget": {"max_attempts": 20, "max_steps": 40, "max_tokens": None, "max_wall_s": 600},
    "checkpoints": {
        "candidate_stage": "validated", "every_steps": 10, "keep": {"kind": "all"},
        "mid_accumulation": "round_to_boundary", "mode": "synchronous", "store": "checkpoints",
    },
    "code": CODE,
    "credit": {"rule": "backpropagation"},
    "data": {
        "admitted_license_classes": ["green"], "expires": None, "manifest": binding("data/manifest.json", 900),
        "terms": "Public domain text.", "train_examples": binding("data/train.examples", 48016),
        "val_examples": binding("data/val.examples", 4816),
    },
    "durability": {"max_unsynced_ms": 250, "max_unsynced_steps": 50},
    "environment": ENVIRONMENT,
    "evaluation": {"streams": [{
        "direction": "minimize", "every_steps": 10, "metric": "bits_per_byte", "name": "val",
        "num_examples": None, "split": "val", "view": "current",
    }]},
    "expected": {"communication_bytes_per_step": 0, "memory_bytes": 536870912},
    "extensions": [],
    "faults": {"plan": [], "recovery": "restart_from_last_validated"},
    "floors": {"free_disk_bytes": 1048576, "free_memory_bytes": 67108864},
    "format": "contract/1",
    "keys": {
        "owner": public("owner"), "qualifier": public("qualifier"),
        "qualifier_recipient": "age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p",
        "trainer": public("trainer"), "validator": public("validator"), "witness_quorum": 0, "witnesses": [],
    },
    "membership": {"kind": "standalone"},
    "name": "golden sample",
    "nonclaims": ["Nothing about text other than the val split."],
    "numerics": {
        "accumulation_dtype": "f32", "compute_dtype": "f32", "determinism": "bitwise", "loss_scaler": None,
        "parameter_dtype": "f32", "reduction": "microbatch_tree",
    },
    "objective": "next_token_cross_entropy",
    "order": {"scheme": "keyed_permutation/1"},
    "parameters": binding("parameters.json", 4000),
    "plan": PLAN,
    "purpose": {
        "authority": {
            "expires": "2030-12-31", "granted_by": "Team", "non_authorities": ["to release"],
            "scope": "one training run",
        },
        "statement": "Sample for the golden vectors: \u00e9, \u20ac, \U0001d11e, \"quoted\", back\\slash.",
    },
    "qualification": {
        "metric": "bits_per_byte", "plaintext": blake3("qualification"),
        "sealed": binding("qualification.age", 5000),
    },
    "quality_target": {"derivation": "3-gram baseline", "stream": "val", "threshold": 2.5},
    "residuals": [{"description": "One host only.", "owner": "Team"}],
    "resume": {"class": "bitwise", "tolerance": None},
    "retention": {"custodian": "Team", "days": 365},
    "ruleset": {"edition": "2026.1", "profile": "native"},
    "schedule": [{
        "group": "all",
        "shape": {"floor": 1e-7, "kind": "warmup_cosine", "peak": 0.003, "total_steps": 40, "warmup_steps": 4},
    }],
    "seeds": {"data_order": "18446744073709551615", "dropout": "2", "initialization": "1"},
    "selection": {"family": "every_evaluated_checkpoint", "stream": "val", "tie": "earliest"},
    "state_classes": state_classes(),
    "state_digest_every_steps": None,
    "stopping": {"kind": "at_step", "step": 40},
    "topology": {"learners": 1, "permitted_rewrites": ["thread_count"], "workers": 1},
    "update": {"card": binding("policy-cards/adamw.json", 1500)},
}



def wide_contract():
    """The same, with every block that a contract may leave out."""
    contract = copy.deepcopy(CONTRACT)
    contract["architecture"]["dropout"] = 0.1
    contract["averages"] = {"decay": 0.999, "first_step": 3, "order": "after_update"}
    contract["budget"]["max_tokens"] = 1000000
    contract["checkpoints"].update(
        after_microbatches=1, candidate_stage="resume_qualified", mid_accumulation="save_gradients",
        mode="asynchronous", store="s3://bucket/prefix",
        keep={"kind": "chosen", "best": 1, "every_steps": 20, "last": 2, "pinned": [10]},
    )
    contract["dropout_draws"] = {"scheme": "philox_stream/1"}
    source = hashlib.sha256(b"source").hexdigest()
    contract["initialization"] = {
        "kind": "warm_start",
        "lineage": {
            "checkpoint": "s00000200-a1", "contract": "sha256:" + source,
            "head": {"root": "sha256:" + hashlib.sha256(b"root").hexdigest(), "size": 900},
            "model": blake3("initial"), "run": source[:16] + "-0123456789abcdef", "step": 200,
        },
        "weights": binding("initial.safetensors", 500000),
    }
    contract["membership"] = {
        "arm": "adamw", "campaign": source[:16] + "-0123456789abcdef", "kind": "campaign",
        "preregistration": binding("preregistration.json", 3000), "rescue_level": 0, "trial": 4,
    }
    contract["numerics"].update(
        compute_dtype="f16",
        loss_scaler={"backoff": 0.5, "growth": 2.0, "growth_interval": 2000, "initial": 65536.0},
    )
    contract["order"] = {"scheme": "shuffle_buffer/1", "size": 64}
    contract["resume"] = {
        "class": "statistical",
        "test": {
            "alpha": 0.05, "margin": 0.001, "metric": "training_loss", "num_steps": 20,
            "seeds": ["1", "2", "18446744073709551615"], "varies": ["data_order", "dropout"],
        },
        "tolerance": None,
    }
    contract["schedule"][0]["shape"] = {
        "cooldown": 1, "factor": 0.5, "floor": 1e-5, "kind": "plateau", "min_delta": 0.01, "patience": 2,
        "rate": 0.003, "stream": "val",
    }
    held = {"scheduler", "rng_cpu", "loss_scaler", "sampler"}
    for declared in contract["state_classes"]:
        if declared["class"] in held:
            declared["not_applicable"] = None
    contract["state_classes"] += [
        {"class": name, "not_applicable": None} for name in ("averages", "accumulated_gradients", "selection_state")
    ]
    contract["state_digest_every_steps"] = 10
    contract["state_tree"] = {"scheme": "tensors/1"}
    return contract


WIDE_CONTRACT = wide_contract()
CONTRACT_BYTES = contract_json(CONTRACT)
CONTRACT_HEX = hashlib.sha256(CONTRACT_BYTES).hexdigest()
CONTRACT_DIGEST = "sha256:" + CONTRACT_HEX
RUN = CONTRACT_HEX[:16] + "-" + NONCE

COST = {
    "bytes_sent": 0, "checkpoint_bytes": 123456, "checkpoint_us": 5000, "cpu_us": 2000000, "energy_j": None,
    "eval_us": 70000, "num_steps_executed": 40, "peak_resident_bytes": 104857600, "recording_us": 900,
    "wall_us": 1500000,
}
COUNTERS = {"evaluations": 0, "examples": 8, "tokens": 512}
CHECKPOINT = "s00000010-a1"
STATE = [
    {"class": "model", "digest": blake3("model")},
    {"class": "scheduler", "digest": None},
]
DRAW = {
    "ids": blake3("ids"), "inputs": blake3("inputs"), "purpose": "update",
    "ranges": [{"epoch": 0, "first": 996, "num_examples": 4}, {"epoch": 1, "first": 0, "num_examples": 4}],
    "stream": "train",
}


def step_body(loss, norm, overflow=None, state=None):
    credit = {"gradient_norm": norm, "loss": loss, "num_microbatches": 2, "num_tokens": 512}
    update = {
        "clip_coefficient": 1.0, "group": "all", "learning_rate": 0.00075, "parameter_norm": None,
        "update_norm": 0.10000000149011612, "weight_decay": 0.1,
    }
    return {
        "det": {
            "counters": COUNTERS, "credit": {"backpropagation": credit}, "draws": [DRAW], "overflow": overflow,
            "state": state, "updates": [update],
        },
        "obs": {"bytes_sent": 0, "duration_us": 37000, "recording_us": 12, "resident_bytes": None},
    }


def evolution_body():
    body = step_body(0.0, 0.0)
    body["det"]["credit"] = {"evolution": {"evaluations": 128, "fitness": -1.5, "population": 64}}
    body["det"]["draws"] = []
    body["det"]["updates"] = []
    return body


def checkpoint_body(**det):
    return {"det": {"step": 10, **det}, "obs": {"checkpoint": CHECKPOINT, "duration_us": 1500}}


def failed_body():
    return {"det": {"step": 10}, "obs": {"checkpoint": CHECKPOINT, "reason": "No space left on device (os error 28)"}}


def frozen_body():
    signature = sign(SEEDS["owner"], pae(CONTRACT_TYPE, CONTRACT_BYTES))
    artifact = {"digest": blake3("policy-cards/adamw.json"), "num_bytes": 1500, "pointer": "/update/card"}
    return {
        "det": {
            "artifacts": [artifact], "contract": CONTRACT_BYTES.decode(), "digest": CONTRACT_DIGEST,
            "signature": {"keyid": key_id("owner", public_key(SEEDS["owner"])), "sig": b64(signature)},
        },
        "obs": {"nonce": NONCE, "tool": TOOL},
    }


QUALIFICATION_OBS = {"duration_us": 80000, "tool": "evaluator 0.1.0"}
NATS = {"metric": "bits_per_byte", "model": blake3("model"), "num_tokens": 4096, "total_nats": 5678.25, "value": 2.0}


def entries():
    """(kind, body, header overrides) in the order of the golden ledger."""
    nan, infinity = float("nan"), float("inf")
    candidate = {"candidate": "candidate-" + CHECKPOINT, "checkpoint": CHECKPOINT}
    run = {"attempt": None, "segment": None, "step": None}
    start = {"attempt": 1, "segment": None, "step": 0}
    ten = {"attempt": 1, "segment": 1, "step": 10}
    qualifier = {"actor": "qualifier", "ledger": "qualification", **run}
    resumed = {"checkpoint": CHECKPOINT, "manifest": blake3("manifest"), "step": 10}
    executed = {
        "compiler": PLAN, "compute_dtype": "f32", "instrumentation": [], "num_threads": 2, "num_workers": 1,
    }
    attempt_obs = {
        "cpu": "Example CPU @ 2.00GHz", "environment": ENVIRONMENT, "host": sha("host"), "plan": executed,
        "process": 4242, "total_memory_bytes": 25769803776,
    }

    def attempt_det(number, reason, point):
        from_step = point["step"] if point else 0
        return {
            "attempt": number, "code": CODE, "contract": CONTRACT_DIGEST, "from_step": from_step,
            "reason": reason, "resumed_from": point,
        }

    apart = {
        "first_step": 12, "max_absolute": 1.25e-9, "max_absolute_beyond_relative": 0.0, "max_relative": infinity,
        "max_ulp": 3, "num_different": 7,
    }
    distance = {
        "class": "optimizer", "distance": apart, "equal": False, "first_tensor": "model.norm.weight.exp_avg",
        "reference": blake3("reference"), "resumed": blake3("resumed"),
    }
    equal = {**apart, "first_step": None, "max_absolute": 0.0, "max_relative": 0.0, "max_ulp": 0, "num_different": 0}
    replayed = {"classes": STATE, "records": sha("records")}
    extension = {
        "critical": False, "name": "org.example.curriculum", "schema_digest": sha("schema"),
        "value": {"a": [1, 2.5, None, True, "x"], "b": {}, "c": -0.0},
    }
    origin = {
        "actor": "trainer:0011223344556677", "previous": None, "sequence": 0,
        "signature": b64(bytes(range(64))),
    }
    family = {"config": blake3("config"), "model": blake3("model"), "step": 10, "value": 2.0}
    selected = {"model": blake3("model"), "num_candidates": 4, "step": 10, "stream": "val", "value": 2.0}
    evaluation = {
        **NATS, "num_examples": 64, "split": "val", "stream": "val", "view": "current",
    }
    end = {"counters": COUNTERS, "last_step": 40, "outcome": "completed", "reason": "step 40", "target_met": True}
    return [
        ("contract.frozen", frozen_body(), {"actor": "owner", **run}),
        ("run.start", {"det": {"contract": CONTRACT_DIGEST}, "obs": {"tool": "trainer 0.1.0"}}, run),
        ("attempt.start", {"det": attempt_det(1, "start", None), "obs": attempt_obs}, start),
        ("segment.start", {"det": {
            "adjudication": None, "from_step": 0, "identity": CONTRACT_DIGEST, "parent": None, "segment": 1,
        }, "obs": {}}, {"attempt": 1, "segment": 1, "step": 0}),
        ("eval", {"det": {**evaluation, "model": None}, "obs": {"duration_us": 70000}}, {**ten, "step": 0}),
        ("step", step_body(5.545177444479562, 1e-3), {**ten, "step": 1}),
        ("step", step_body(nan, infinity, {"found": True, "scale": 65536.0, "skipped": True}), {**ten, "step": 2}),
        ("step", evolution_body(), {**ten, "step": 3, "learner": 0, "worker": 1}),
        ("step", step_body(5e-324, 1.7976931348623157e308, None, STATE), {**ten, "step": 10}),
        ("heartbeat", {"det": {"phase": "eval"}, "obs": {"resident_bytes": 104857600}}, ten),
        ("eval", {"det": evaluation, "obs": {"duration_us": 70000}}, ten),
        ("diagnostic", {"det": {"name": "norms", "values": {"a": 1.0, "b.c": 0.1, "z z": 1e16}},
                        "obs": {"values": {}}}, ten),
        ("anomaly", {"det": {"name": "loss_not_finite"}, "obs": {"description": "loss is NaN\tat step 2\n"}}, ten),
        ("checkpoint.requested", checkpoint_body(), ten),
        ("checkpoint.staged", checkpoint_body(), ten),
        ("checkpoint.durably_committed", {
            "det": {"classes": STATE, "model": blake3("model"), "step": 10},
            "obs": {"checkpoint": CHECKPOINT, "duration_us": 9000, "manifest": blake3("manifest"),
                    "num_bytes": 400000, "path": "checkpoints/" + CHECKPOINT},
        }, ten),
        ("checkpoint.validated", checkpoint_body(), ten),
        ("candidate.admitted", {"det": family, "obs": candidate}, ten),
        ("probe.start", {"det": {"class": "bitwise", "code": CODE, "num_steps": 5, "step": 10,
                                 "withheld": ["optimizer"]},
                         "obs": {"checkpoint": CHECKPOINT, "plan": executed}}, ten),
        ("probe.result", {"det": {"class": "bitwise", "distances": [distance], "inert": None, "num_steps": 5,
                                  "records": [{"distance": equal, "equal": True, "record": "draws"}],
                                  "reference": replayed, "step": 10, "withheld": []},
                          "obs": {"checkpoint": CHECKPOINT, "duration_us": 400000, "start": 18}}, ten),
        ("checkpoint.resume_qualified", checkpoint_body(**{"class": "bitwise", "probe": 19}), ten),
        ("checkpoint.failed", failed_body(), ten),
        ("checkpoint.quarantined", failed_body(), ten),
        ("checkpoint.retired", checkpoint_body(kept=["model"], reason="not_chosen"), ten),
        ("fault.injected", {"det": {"fault": "worker_loss", "phase": "before_forward", "plan_index": 0},
                            "obs": {}}, ten),
        ("fault.observed", {"det": {"attempt": 1, "fault": "attempt_vanished", "last_step": 12},
                            "obs": {"checkpoint": None, "description": "killed"}}, {**ten, "attempt": 2}),
        ("attempt.start", {"det": attempt_det(2, "resume", resumed), "obs": attempt_obs}, {**ten, "attempt": 2}),
        ("fault.recovered", {"det": {"attempt": 1, "from_step": 10, "num_steps_lost": 2},
                             "obs": {"checkpoint": CHECKPOINT, "fallback": None}}, {**ten, "attempt": 2}),
        ("intervention", {"det": {"action": "moved the store"},
                          "obs": {"operator_minutes": 5, "reason": "disk full"}}, run),
        ("attempt.end", {"det": {"attempt": 2, "last_step": 40, "outcome": "completed"},
                         "obs": {"cost": COST, "reason": "stopping rule"}}, {**ten, "attempt": 2, "step": 40}),
        ("candidate.selected", {"det": selected, "obs": candidate}, {**ten, "attempt": 2, "step": 40}),
        ("cost", {"det": {"charged_to": "operator"},
                  "obs": {"amount": 5.0, "description": "moved the store", "unit": "minutes"}}, run),
        ("run.end", {"det": end, "obs": {"cost": COST, "num_attempts": 2, "num_attempts_incomplete": 1}},
         {**run, "step": 40}),
        ("witness.head", {"det": {"note": "origin\n1\nroot\n", "witness": "witness.example"}, "obs": {}}, run),
        ("amendment", {"det": {"amends": 28, "statement": "It took 6 minutes."}, "obs": {}},
         {**run, "extensions": [extension], "origin": origin}),
        ("handoff.issued", {"det": {"model": blake3("model"), "step": 10},
                            "obs": {"candidate": candidate["candidate"], "report": blake3("report"),
                                    "root": "ab" * 32, "size": 35}}, run),
        ("qualification.opened", {"det": {"handoff": blake3("handoff"), "model": blake3("model"),
                                          "sealed": blake3("sealed")},
                                  "obs": {"num_earlier_openings": 0, "tool": "evaluator 0.1.0"}}, qualifier),
        ("qualification.result", {"det": {
            **NATS, "handoff": blake3("handoff"), "plaintext": blake3("qualification"),
            "overlap": {"method": "64-byte spans", "num_shared": 0, "num_spans": 4033},
        }, "obs": QUALIFICATION_OBS}, qualifier),
        ("qualification.val", {"det": {**NATS, "num_examples": 64, "step": 10, "stream": "val"},
                               "obs": QUALIFICATION_OBS}, qualifier),
    ]
