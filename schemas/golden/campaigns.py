"""A sample preregistration and the entries of its campaign, for the golden vectors."""

import hashlib

from formats import b64, contract_json, key_id, pae, public_key, sign, signed_note
from samples import CONTRACT_DIGEST, NONCE, RUN, SEEDS, TOOL, blake3, public

PREREGISTRATION_TYPE = "application/vnd.governed-ledger.preregistration+json"

UNTUNED = {"num_trials": 0, "pointers": [], "price_tokens": 0, "search_space": "", "unequal_because": None}

PREREGISTRATION = {
    "arms": [
        {
            "card": None, "declared": [], "fallback_groups": [], "family": "adamw", "label": "AdamW", "name": "adamw",
            "positive_control": None, "rescue": [], "role": "baseline",
            "tuning": {
                "num_trials": 3,
                "pointers": ["/schedule/0/shape/peak", "/update/card#/groups/0/weight_decay"],
                "price_tokens": 20480, "search_space": "peak 1e-3 to 1e-2, decay 0 to 0.1", "unequal_because": None,
            },
        },
        {
            "card": blake3("card without decay"),
            "declared": [{"pointer": "/update/card", "why": "the method has no decay"}],
            "fallback_groups": ["vectors"], "family": "adamw", "label": "Adam", "name": "adam",
            "positive_control": {"threshold": 4.5, "why": "a byte trigram reaches it"},
            "rescue": [
                {"level": 1, "max_runs": 3, "pointers": ["/schedule/0/shape/peak"], "when": "the loss is not finite"},
            ],
            "role": "proposed",
            "tuning": {**UNTUNED, "unequal_because": "its values are those of the paper"},
        },
    ],
    "authority": {
        "expires": None, "granted_by": "the team", "non_authorities": ["to release"], "scope": "train on synthetic text",
    },
    "axes": [{
        "axis": "width", "pointers": ["/architecture/hidden_size", "/architecture/intermediate_size"],
        "points": [[64, 192], [128, 384]],
    }],
    "claims": [{
        "arms": [{"against": "adamw", "arm": "adam"}], "dimension": "tokens_to_quality", "id": "cheaper",
        "kind": "efficiency", "margin": 0.05, "min_seeds": 3, "scope": ["width"],
    }],
    "costs": ["bytes", "device_seconds", "evaluations", "examples", "steps", "tokens", "wall_time"],
    "decision": {"confidence": 0.95, "kind": "paired_interval/1"},
    "extensions": [],
    "format": "governed-ledger/preregistration/1",
    "keys": {"owner": public("owner"), "validator": public("validator")},
    "metric": {"direction": "minimize", "stream": "val", "threshold": 2.5},
    "name": "golden campaign",
    "nonclaims": ["nothing about other data"],
    "question": "Does decay cost tokens at this size?",
    "reference_arm": "adamw",
    "residuals": [{"description": "one machine", "owner": "the team"}],
    "ruleset": {"edition": "2026.1"},
    "seeds": ["1", "2", "18446744073709551615"],
}

PREREGISTRATION_BYTES = contract_json(PREREGISTRATION)
PREREGISTRATION_HEX = hashlib.sha256(PREREGISTRATION_BYTES).hexdigest()
CAMPAIGN = PREREGISTRATION_HEX[:16] + "-" + NONCE


def campaign_entries():
    """(kind, body, header overrides), to follow the entries of the other ledgers."""
    header = {"actor": "owner", "ledger": "campaign", "run": CAMPAIGN}
    signature = sign(SEEDS["owner"], pae(PREREGISTRATION_TYPE, PREREGISTRATION_BYTES))
    key = public_key(SEEDS["owner"])
    head = signed_note(SEEDS["owner"], "governed-ledger/run/" + RUN, 1, hashlib.sha256(b"root").digest())
    run = {
        "arm": "adamw", "contract": CONTRACT_DIGEST, "owner": key.hex(), "purpose": "tuning", "rescue_level": 0,
        "run": RUN, "seed": "7", "trial": 1,
    }
    return [
        ("campaign.frozen", {
            "det": {
                "digest": "sha256:" + PREREGISTRATION_HEX, "preregistration": PREREGISTRATION_BYTES.decode(),
                "signature": {"keyid": key_id("owner", key), "sig": b64(signature)},
            },
            "obs": {"nonce": NONCE, "tool": TOOL},
        }, header),
        ("campaign.run", {"det": run, "obs": {"head": head, "late": None, "path": "adamw-1/run.db"}}, header),
        ("campaign.run", {
            "det": {**run, "purpose": "confirmation", "trial": 4},
            "obs": {"head": head, "late": "bound after an outage of the store", "path": "adamw-4/run.db"},
        }, header),
    ]
