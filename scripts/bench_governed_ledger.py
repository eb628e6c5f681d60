"""The recorder of loops of one's own, as a plug-in of scripts/bench_recorders.py,
which scripts/bench-recorders names.

It needs the package `governed_ledger` (python/) where that Python finds it, and
`ledger` on PATH. What it records at a step is a whole entry: draws with digests of
the text that was fed, counters, credit, one update a parameter group with both of
its norms; and at step 0 an evaluation and a checkpoint, which no figure is of.
"""

from __future__ import annotations

import json
import pathlib
import struct
import subprocess

import governed_ledger
from bench_recorders import Recorder

BACKEND = "a loop of numbers"


def made(folder: pathlib.Path, num_steps: int) -> pathlib.Path:
    """A frozen run of this file as the loop, with one step more than is recorded."""
    steps = num_steps + 1
    run = folder / "run"
    edits = [f"/{place}={steps}" for place in (
        "stopping/step", "budget/max_steps", "checkpoints/every_steps", "evaluation/streams/0/every_steps",
    )]
    subprocess.run(
        ["ledger", "init", "--lipsum", "--preset", "tiny", "--output", run, "--profile", "external-loop",
         "--loop", __file__, "--backend", BACKEND, "--runtime", governed_ledger.runtime(),
         *(word for edit in edits for word in ("--set", edit))],
        check=True, capture_output=True,
    )
    subprocess.run(["ledger", "freeze", run / "contract.json"], check=True, capture_output=True)
    return run


class GovernedLedger(Recorder):
    """The Python package, under a contract of its own."""

    name = "governed_ledger"

    def __init__(self, folder: pathlib.Path, address: str, num_steps: int) -> None:
        run = made(folder, num_steps)
        self.attempt = governed_ledger.attempt(
            run / "run.db", backend=BACKEND, program=run / "loop" / pathlib.Path(__file__).name
        )
        self.groups = self.attempt.groups()
        self.position = 0
        for stream in self.attempt.due().evaluations:
            examples = self.attempt.stream_examples(stream)
            tokens = sum(len(example) - 1 for example in examples)
            self.attempt.evaluation(stream, total_nats=5.5 * tokens, num_examples=len(examples), num_tokens=tokens)
        manifest = json.loads((run / "parameters.json").read_text())
        model, optimizer = [], []
        for parameter in manifest["parameters"]:
            if parameter["tied_to"] is not None:
                continue
            path, shape, count = parameter["path"], parameter["shape"], 1
            for extent in shape:
                count *= extent
            values = struct.pack(f"<{count}f", *(0.013 + 1.17e-4 * index for index in range(count)))
            model.append(governed_ledger.Tensor(path, "F32", shape, values))
            for moment in ("exp_avg", "exp_avg_sq"):
                optimizer.append(governed_ledger.Tensor(f"{path}.{moment}", "F32", shape, bytes(4 * count)))
        self.attempt.save(model, optimizer, 0)

    def step(self, step: int, values: dict[str, float]) -> None:
        fed = self.attempt.batch(self.position)
        coefficient = self.attempt.clip_coefficient(values["gradient_norm"])
        self.attempt.step(
            position=self.position,
            fed=fed,
            loss=values["loss_nats"],
            gradient_norm=values["gradient_norm"],
            num_microbatches=2,
            groups=[
                governed_ledger.GroupUpdate(
                    name,
                    self.attempt.learning_rate(name, step),
                    coefficient,
                    decay,
                    parameter_norm=values[f"{name}/parameter_norm"],
                    update_norm=values[f"{name}/update_norm"],
                )
                for name, decay, _ in self.groups
            ],
        )
        self.position += len(fed)

    def close(self) -> None:
        self.attempt.interrupt("the bench is over")

    @staticmethod
    def read(folder: pathlib.Path, address: str) -> int:
        query = "SELECT count(*) FROM steps"
        ran = subprocess.run(
            ["ledger", "query", folder / "run" / "run.db", "--sql", query, "--json"],
            check=True, capture_output=True, text=True,
        )
        return int(json.loads(ran.stdout)["rows"][0][0])


RECORDERS = [GovernedLedger]
