"""The programs that `scripts/faults` tries: built, kept, run and ended."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))

# Seconds that a program is given: tiny runs take a few.
TIMEOUT_S = 600


class CouldNotRun(Exception):
    """What was missing, and what to do."""


class Programs:
    """The programs of one build, in a folder of their own, so that the other build cannot replace them."""

    def __init__(self, parent, is_withheld, is_built):
        self.folder, self.is_withheld = parent / ("bin-withheld" if is_withheld else "bin-plain"), is_withheld
        if is_built:
            if not (self.folder / "trainer").exists():
                raise CouldNotRun(f"{self.folder}: no programs; --keep leaves them in the folder that it names")
            return
        features = ["--features", "trainer/failpoints"] if is_withheld else []
        command = ["cargo", "build", "--locked", "--workspace", "--bins", *features]
        if subprocess.run(command, cwd=ROOT, stdout=sys.stderr, check=False).returncode != 0:
            raise CouldNotRun(f"`{' '.join(command)}` failed")
        self.folder.mkdir()
        for name in ("ledger", "trainer", "evaluator"):
            shutil.copy2(TARGET / "debug" / name, self.folder / name)

    def run(self, *words, codes=(0,), environment=None):
        """Exit code, output and messages of a program, whose code has to be one of these; None: any."""
        name, *arguments = [str(word) for word in words]
        variables = {**os.environ, "RAYON_NUM_THREADS": "1", "NO_COLOR": "1", **(environment or {})}
        variables.pop("LEDGER_KEYS", None)
        variables["LEDGER_TRAINER"] = str(self.folder / "trainer")
        if self.is_withheld:
            variables["LEDGER_ALLOW_INSTRUMENTATION"] = "1"
        code, printed, said = self.finish([self.folder / name, *arguments], variables)
        if codes is not None and code not in codes:
            shown = " ".join([name, *arguments])
            raise CouldNotRun(f"`{shown}` ended with {code}:\n{printed[-1000:]}{said[-3000:]}")
        return code, printed, said

    @staticmethod
    def finish(command, variables):
        """Exit code and what was written; of a program that does not end, nothing is left behind."""
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        # A group of its own, so that its workers end with it.
        process = subprocess.Popen(command, text=True, errors="replace", env=variables, process_group=0, **pipes)
        try:
            printed, said = process.communicate(timeout=TIMEOUT_S)
        except BaseException as error:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                raise CouldNotRun(f"`{' '.join(map(str, command))}` did not end in {TIMEOUT_S} s") from error
            raise
        return process.returncode, printed, said

    def entries(self, ledger):
        return [json.loads(line) for line in self.run("ledger", "list", ledger, "--json")[1].splitlines()]

    def audit(self, ledger):
        return json.loads(self.run("ledger", "audit", ledger, "--json", codes=(0, 1, 3, 4))[1])
