#!/usr/bin/env python3
"""Measures what recording a step costs a Python loop, and what of the record is
left after kill -9.

Every recorder gets the same numbers a step, those that a loop with three groups of
parameters knows, from a loop that computes for some milliseconds between two calls,
as a training loop does; so a recorder that works on a thread of its own has time to,
and shares the processors with the computation. Three figures a recorder, each a median over rounds in which the
recorders take turns, every one in a process of its own:

- `call`: how long the call takes that records a step, median and 99th percentile;
- `loop`: what a step of the loop takes longer than with no recorder at all, the
  end of the recorder included; it can be negative by the noise of the machine;
- `kept`: of the steps whose call had returned when the process killed itself,
  how many can be read back, by the recorder's own reader.

What a recorder keeps is no wider than that: an operating system that dies loses
what was not synced, and only `jsonl, synced` syncs every step.

Another recorder plugs in as a Python file (`--plugin`) that has a list
`RECORDERS` of classes like those below; this project's own does. Times are of this machine and this hour.

Exit codes: 0 measured; 2 it could not run.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import math
import os
import pathlib
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from typing import Any, Iterator, Optional

sys.dont_write_bytecode = True

# Longest wait for MLflow's server, in seconds.
SERVER_WAIT_S = 120
# Steps of a round that no figure is of: imports, tables, first files.
WARMUP_STEPS = 10
# Groups of parameters that the loop updates, as the preset's policy card has them.
GROUPS = ("matrices", "embeddings", "vectors")


class CouldNotRun(Exception):
    """What was missing, and what to do."""


def numbers(step: int) -> dict[str, float]:
    """What a loop knows of a step: the numbers of a `step` entry."""
    values = {
        "loss_nats": 5.5 * math.exp(-step / 300),
        "gradient_norm": 1.0 + math.sin(step),
        "tokens": float(1024 * step),
        "examples": float(8 * step),
        "duration_us": 5000.0 + step % 7,
        "resident_bytes": 3.0e8,
    }
    for number, group in enumerate(GROUPS, 1):
        values[f"{group}/learning_rate"] = 3e-3 / step
        values[f"{group}/clip_coefficient"] = 1.0
        # Doubles of all their digits, as norms are.
        values[f"{group}/parameter_norm"] = 7.0 * math.sqrt(number + step / 300)
        values[f"{group}/update_norm"] = 0.01 * math.sqrt(number + step / 300)
    return values


class Recorder:
    """One way to record; made in the process of the loop."""

    name = ""
    """As it stands in the table."""

    needs_server = False
    """Whether `address` is that of an MLflow server."""

    def __init__(self, folder: pathlib.Path, address: str, num_steps: int) -> None:
        """Opens it in an empty folder, for a loop of so many steps."""

    def step(self, step: int, values: dict[str, float]) -> None:
        """Records one step, from 1."""

    def close(self) -> None:
        """Ends in order: everything is where it belongs."""

    @staticmethod
    def read(folder: pathlib.Path, address: str) -> int:
        """Steps that can be read back from the folder, or from the server."""
        return 0


class Nothing(Recorder):
    """The loop alone."""

    name = "none"


class Jsonl(Recorder):
    """One JSON object a line, through Python's own buffer."""

    name = "jsonl, buffered"
    sync = False
    flush = False

    def __init__(self, folder: pathlib.Path, address: str, num_steps: int) -> None:
        self.file = (folder / "steps.jsonl").open("w", encoding="utf-8")

    def step(self, step: int, values: dict[str, float]) -> None:
        self.file.write(json.dumps({"step": step, "time": time.time(), **values}) + "\n")
        if self.flush or self.sync:
            self.file.flush()
        if self.sync:
            os.fdatasync(self.file.fileno())

    def close(self) -> None:
        self.file.flush()
        os.fsync(self.file.fileno())
        self.file.close()

    @staticmethod
    def read(folder: pathlib.Path, address: str) -> int:
        count = 0
        for line in (folder / "steps.jsonl").read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(ValueError):
                count += "step" in json.loads(line)
        return count


class JsonlFlushed(Jsonl):
    """The same, handed to the operating system at each step."""

    name = "jsonl, flushed"
    flush = True


class JsonlSynced(Jsonl):
    """The same, on the disk at each step."""

    name = "jsonl, synced"
    sync = True


class Mlflow(Recorder):
    """MLflow's client on a SQLite file, as it is meant for one machine."""

    name = "mlflow, sqlite"
    synchronous = True

    def __init__(self, folder: pathlib.Path, address: str, num_steps: int) -> None:
        import mlflow

        mlflow.set_tracking_uri(self.store(folder, address))
        mlflow.set_experiment(folder.name)
        mlflow.start_run()
        self.mlflow = mlflow

    @staticmethod
    def store(folder: pathlib.Path, address: str) -> str:
        return f"sqlite:///{folder}/mlflow.db"

    def step(self, step: int, values: dict[str, float]) -> None:
        self.mlflow.log_metrics(values, step=step, synchronous=self.synchronous)

    def close(self) -> None:
        if not self.synchronous:
            self.mlflow.flush_async_logging()
        self.mlflow.end_run()

    @classmethod
    def read(cls, folder: pathlib.Path, address: str) -> int:
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=cls.store(folder, address))
        experiment = client.get_experiment_by_name(folder.name)
        if experiment is None:
            return 0
        runs = client.search_runs([experiment.experiment_id])
        return sum(len(client.get_metric_history(run.info.run_id, "loss_nats")) for run in runs)


class MlflowAsynchronous(Mlflow):
    """The same with `synchronous=False`."""

    name = "mlflow, sqlite, asynchronous"
    synchronous = False


class MlflowServer(Mlflow):
    """MLflow's client and a server on this machine, over SQLite."""

    name = "mlflow, server"
    needs_server = True

    @staticmethod
    def store(folder: pathlib.Path, address: str) -> str:
        return address


class Trackio(Recorder):
    """Trackio on its local SQLite files."""

    name = "trackio"

    def __init__(self, folder: pathlib.Path, address: str, num_steps: int) -> None:
        os.environ["TRACKIO_DIR"] = str(folder)
        import trackio

        self.trackio = trackio
        with contextlib.redirect_stdout(sys.stderr):
            trackio.init(project="bench", name="loop", embed=False, auto_log_cpu=False, auto_log_gpu=False)

    def step(self, step: int, values: dict[str, float]) -> None:
        self.trackio.log(values, step=step)

    def close(self) -> None:
        with contextlib.redirect_stdout(sys.stderr):
            self.trackio.finish()

    @staticmethod
    def read(folder: pathlib.Path, address: str) -> int:
        import sqlite3

        count = 0
        for path in folder.glob("*.db"):
            with contextlib.closing(sqlite3.connect(path)) as database, contextlib.suppress(sqlite3.Error):
                count += database.execute("SELECT count(DISTINCT step) FROM metrics").fetchone()[0]
        return count


RECORDERS: list[type[Recorder]] = [
    Nothing,
    Jsonl,
    JsonlFlushed,
    JsonlSynced,
    Mlflow,
    MlflowAsynchronous,
    MlflowServer,
    Trackio,
]


def load_plugin(path: pathlib.Path) -> list[type[Recorder]]:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise CouldNotRun(f"{path} is not a Python file\nhint: name one that has a list RECORDERS")
    # A plugin imports `Recorder` from here, where this file is the program.
    sys.modules.setdefault("bench_recorders", sys.modules[__name__])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return list(module.RECORDERS)


def compute(milliseconds: float) -> None:
    """Keeps a processor busy, as a small update does."""
    until = time.perf_counter() + milliseconds / 1000
    total = 0.0
    while time.perf_counter() < until:
        total += sum(math.sqrt(value) for value in range(200))


def loop(recorder: Recorder, num_steps: int, step_ms: float) -> tuple[list[int], int]:
    """Nanoseconds of each call, and of the loop from its first measured step."""
    calls = []
    started = 0
    for step in range(1, WARMUP_STEPS + num_steps + 1):
        if step == WARMUP_STEPS + 1:
            started = time.perf_counter_ns()
        compute(step_ms)
        values = numbers(step)
        before = time.perf_counter_ns()
        recorder.step(step, values)
        if step > WARMUP_STEPS:
            calls.append(time.perf_counter_ns() - before)
    recorder.close()
    return calls, time.perf_counter_ns() - started


def child(arguments: argparse.Namespace, kinds: dict[str, type[Recorder]]) -> int:
    """One recorder in this process: `time`, `kill` or `read`."""
    kind = kinds[arguments.recorder]
    if arguments.child == "read":
        print(json.dumps({"kept": kind.read(arguments.folder, arguments.address)}))
        return 0
    recorder = kind(arguments.folder, arguments.address, WARMUP_STEPS + arguments.steps)
    if arguments.child == "kill":
        for step in range(1, arguments.steps + 1):
            compute(arguments.step_ms)
            recorder.step(step, numbers(step))
        os.kill(os.getpid(), signal.SIGKILL)
    calls, total_ns = loop(recorder, arguments.steps, arguments.step_ms)
    print(json.dumps({"calls_ns": calls, "total_ns": total_ns}))
    return 0


def start(arguments: argparse.Namespace, what: str, kind: type[Recorder], folder: pathlib.Path, address: str) -> Any:
    """Runs a child; what it printed, or its exit code where it killed itself."""
    command = [sys.executable, __file__, "--child", what, "--recorder", kind.name, "--folder", str(folder)]
    command += ["--address", address, "--steps", str(arguments.steps), "--step-ms", str(arguments.step_ms)]
    for plugin in arguments.plugin:
        command += ["--plugin", str(plugin)]
    environment = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "1", "TRACKIO_DIR": str(folder)}
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if what == "kill" and finished.returncode == -signal.SIGKILL:
        return None
    if finished.returncode != 0:
        raise CouldNotRun(f"{kind.name}: {finished.stderr[-2000:]}")
    return json.loads(finished.stdout.splitlines()[-1])


def served_at(log: str) -> str:
    """The address in a server's log, or nothing; a blank behind it shows that it is whole."""
    found = re.search(r" running on (http://127\.0\.0\.1:[0-9]+) ", log)
    return found[1] if found else ""


@contextlib.contextmanager
def server(folder: pathlib.Path, is_needed: bool) -> Iterator[str]:
    """Address of an MLflow server, which ends with the block."""
    if not is_needed:
        yield ""
        return
    program = pathlib.Path(sys.executable).parent / "mlflow"
    command = [str(program), "server", "--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--workers", "1"]
    # Any free port, which it says: one that was looked for before might be another
    # program's by then.
    command += ["--artifacts-destination", str(folder / "artifacts"), "--host", "127.0.0.1", "--port", "0"]
    environment = {
        **os.environ,
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }
    with (folder / "server.log").open("w") as log:
        process = subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, start_new_session=True, cwd=folder
        )
        try:
            until = time.monotonic() + SERVER_WAIT_S
            while True:
                said = (folder / "server.log").read_text(errors="replace")
                address = served_at(said)
                if address:
                    with contextlib.suppress(OSError, urllib.error.URLError):
                        urllib.request.urlopen(f"{address}/health", timeout=5).close()
                        break
                if process.poll() is not None or time.monotonic() > until:
                    raise CouldNotRun(f"MLflow's server does not answer: {said[-2000:]}")
                time.sleep(0.2)
            yield address
        finally:
            # Its workers are processes of their own.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def percentile(values: list[int], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def measure(arguments: argparse.Namespace, kinds: list[type[Recorder]]) -> list[dict[str, Any]]:
    calls: dict[str, list[int]] = {kind.name: [] for kind in kinds}
    totals: dict[str, list[float]] = {kind.name: [] for kind in kinds}
    kept: dict[str, Optional[int]] = {}
    with tempfile.TemporaryDirectory(prefix="bench-recorders-") as name:
        root = pathlib.Path(name)
        (root / "server").mkdir()
        with server(root / "server", any(kind.needs_server for kind in kinds)) as address:

            def folder(what: str, number: int) -> pathlib.Path:
                path = root / f"{what}-{number}"
                path.mkdir()
                return path

            for round_number in range(arguments.rounds):
                print(f"round {round_number + 1} of {arguments.rounds}", file=sys.stderr, flush=True)
                # Turned round each time, so that nobody is always first.
                turn = kinds[round_number % len(kinds) :] + kinds[: round_number % len(kinds)]
                for number, kind in enumerate(turn):
                    path = folder(f"time-{round_number}", number)
                    timed = start(arguments, "time", kind, path, address)
                    calls[kind.name] += timed["calls_ns"]
                    totals[kind.name].append(timed["total_ns"] / arguments.steps / 1000)
                    shutil.rmtree(path)
            for number, kind in enumerate(kinds):
                if kind is Nothing:
                    kept[kind.name] = None
                    continue
                path = folder("kill", number)
                start(arguments, "kill", kind, path, address)
                kept[kind.name] = start(arguments, "read", kind, path, address)["kept"]
    base = statistics.median(totals[Nothing.name])
    return [
        {
            "call_us": statistics.median(calls[kind.name]) / 1000,
            "call_us_p99": percentile(calls[kind.name], 0.99) / 1000,
            "kept": kept[kind.name],
            "loop_us": statistics.median(totals[kind.name]) - base,
            "recorder": kind.name,
            "steps_killed": arguments.steps,
        }
        for kind in kinds
    ]


def show(rows: list[dict[str, Any]]) -> None:
    print(f"{'recorder':<30} {'call, us':>10} {'99 %, us':>10} {'loop, us':>10} {'kept after kill -9':>20}")
    for row in rows:
        kept = "" if row["kept"] is None else f"{row['kept']} of {row['steps_killed']}"
        print(
            f"{row['recorder']:<30} {row['call_us']:>10.1f} {row['call_us_p99']:>10.1f} "
            f"{row['loop_us']:>10.1f} {kept:>20}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=300, help="measured steps of a round (300)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds (5)")
    parser.add_argument("--step-ms", type=float, default=5.0, help="computation of a step (5)")
    parser.add_argument("--quick", action="store_true", help="100 steps, 2 rounds")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="recorders whose name begins so")
    parser.add_argument("--plugin", action="append", type=pathlib.Path, default=[], metavar="FILE")
    parser.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the figures there too")
    for hidden in ("--child", "--recorder", "--address"):
        parser.add_argument(hidden, default="", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=pathlib.Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    # A server that was started ends with this process.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    if arguments.quick:
        arguments.steps, arguments.rounds = 100, 2
    try:
        kinds = list(RECORDERS)
        for plugin in arguments.plugin:
            kinds += load_plugin(plugin)
        if arguments.child:
            return child(arguments, {kind.name: kind for kind in kinds})
        wanted = tuple(arguments.only)
        if wanted:
            kinds = [kind for kind in kinds if kind is Nothing or kind.name.startswith(wanted)]
        if len(kinds) < 2:
            raise CouldNotRun("no recorder has such a name\nhint: " + ", ".join(kind.name for kind in RECORDERS))
        rows = measure(arguments, kinds)
    except CouldNotRun as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(
        f"{arguments.rounds} rounds of {arguments.steps} steps of {arguments.step_ms:g} ms, "
        f"{len(numbers(1))} numbers a step, Python {platform.python_version()}, {os.cpu_count()} processors\n"
    )
    show(rows)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
