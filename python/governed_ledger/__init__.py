"""Records a training loop of your own under a frozen contract.

A loop opens an attempt, takes its examples and rates from it, and says what it
did. What is on record is what the loop said; `ledger audit run.db` compares it
with the contract. See `examples/pytorch/train.py` in the project.

    with governed_ledger.attempt("run/run.db", backend="torch 2.1") as attempt:
        position = attempt.resumed.position if attempt.resumed else 0
        while True:
            due = attempt.due()
            for stream in due.evaluations: attempt.evaluation(stream, ...)
            if due.checkpoint: attempt.save(model, optimizer, position)
            if due.is_last: break
            ...
            attempt.step(...)
        attempt.finish()

Leaving the block by an exception ends the attempt as failed, by Ctrl-C, SIGTERM
or `sys.exit(0)` as interrupted; a process that is killed leaves an attempt
without an end, which the next one reports. Every refusal is a `LedgerError`,
whose `hint` says what to do.

A save that failed is on record and is not tried again: leave the block, by the
exception or by `fail` or `interrupt`, and run the loop again. Calls are of the
process that opened the attempt: one that was forked from it (a worker of a data
loader) is refused, and leaves nothing on record. Such a child lets go of the
ledger's lock, so that the loop can be run again although the child lives on. One
that other code than Python's forked keeps it: end it before a killed loop is run
again.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import sys
import weakref
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Mapping, Optional, Sequence, Union

from ._native import LedgerError, NativeAttempt, __version__

__all__ = [
    "Attempt",
    "Checkpoint",
    "Due",
    "Finished",
    "GroupUpdate",
    "LedgerError",
    "Tensor",
    "__version__",
    "attempt",
    "runtime",
]

PathLike = Union[str, "os.PathLike[str]"]


def runtime() -> str:
    """What a contract freezes as the loop's runtime: `Python 3.11.2`."""
    return f"Python {platform.python_version()}"


@dataclass(frozen=True)
class Tensor:
    """A tensor as bytes: little-endian elements, row-major."""

    name: str
    dtype: str
    """safetensors spelling: `F32`."""
    shape: Sequence[int]
    data: bytes


@dataclass(frozen=True)
class GroupUpdate:
    """What an update did to one parameter group of the policy card."""

    group: str
    learning_rate: float
    clip_coefficient: float
    weight_decay: float
    parameter_norm: Optional[float] = None
    update_norm: Optional[float] = None


@dataclass(frozen=True)
class Due:
    """What the contract asks for before the next update."""

    evaluations: list[str]
    checkpoint: bool
    is_last: bool


@dataclass(frozen=True)
class Checkpoint:
    """Where an attempt begins."""

    name: str
    step: int
    position: int
    """Examples that updates had consumed."""


@dataclass(frozen=True)
class Finished:
    """How a run ended."""

    candidate: Optional[str]
    last_step: int
    target_met: Optional[bool]


# Running attempts of this process, whose locks a forked child has open as well. An
# attempt that ended has let go of its own, and another file may have its inode.
_attempts: weakref.WeakSet[Attempt] = weakref.WeakSet()


def _let_go_of_locks() -> None:
    """Closes in a forked child what it has open of the ledgers' lock files.

    The lock is that of the open file, which parent and child share: the child
    would hold it for as long as it lives, also when its parent was killed. Closing
    takes nothing from the parent; unlocking would. The databases stay open, since
    SQLite's connections must not be used in a child, and neither is closed."""
    locks = {attempt._lock for attempt in _attempts}
    if not locks:
        return
    try:
        descriptors = [int(name) for name in os.listdir("/dev/fd")]
    except OSError:
        # The lock stays with the child, and the next attempt's refusal says so.
        return
    for descriptor in descriptors:
        try:
            found = os.fstat(descriptor)
        except OSError:
            # The one that listed them.
            continue
        if (found.st_dev, found.st_ino) in locks:
            os.close(descriptor)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_of_locks)


class _Terminated(BaseException):
    """SIGTERM, as an exception, so that the block is left in order."""


class Attempt:
    """A running attempt; made by `attempt`."""

    def __init__(self, native: NativeAttempt, lock: PathLike) -> None:
        self._native = native
        # Which file that is stays true when the loop changes its folder.
        found = os.stat(lock)
        self._lock = (found.st_dev, found.st_ino)
        _attempts.add(self)
        # Kept here, so that a signal may ask for it while a call is under way.
        self._process = native.process
        resumed = native.resumed()
        self.resumed: Optional[Checkpoint] = Checkpoint(*resumed) if resumed else None
        """The checkpoint that it begins from; None: the initial state."""
        self.contract: dict[str, Any] = json.loads(native.contract_json)
        """The frozen contract."""
        self.card: dict[str, Any] = json.loads(native.card_json)
        """The optimizer policy card."""
        self._handler: Any = None

    @property
    def number(self) -> int:
        """Number of the attempt, from 1."""
        return self._native.number

    @property
    def run_id(self) -> str:
        """The run's identifier."""
        return self._native.run_id

    @property
    def last_step(self) -> int:
        """Completed updates on record."""
        return self._native.last_step

    @property
    def warnings(self) -> list[str]:
        """What could not be cleaned up behind earlier attempts."""
        return self._native.warnings

    def due(self) -> Due:
        """What has to happen before the next update."""
        return Due(*self._native.due())

    def groups(self) -> list[tuple[str, float, list[str]]]:
        """The policy card's groups in order: name, decay, paths of parameters."""
        return self._native.groups()

    def learning_rate(self, group: str, step: int) -> float:
        """Rate of a group at a step, from 1, in binary64."""
        return self._native.learning_rate(group, step)

    def clip_coefficient(self, gradient_norm: float) -> float:
        """What gradients of this norm are multiplied by, by the policy card."""
        return self._native.clip_coefficient(gradient_norm)

    def batch(self, position: int, num_examples: Optional[int] = None) -> list[bytes]:
        """The examples at positions of the contract's order, of each its inputs
        and the last target: n + 1 bytes for n targets. Default: a global batch."""
        if num_examples is None:
            num_examples = int(self.contract["batch"]["global_examples"])
        return self._native.batch(position, num_examples)

    def stream_examples(self, stream: str) -> list[bytes]:
        """The examples that a stream evaluates, like `batch`."""
        return self._native.stream_examples(stream)

    def resumed_tensors(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Parameters and optimizer state of the checkpoint that it begins from."""
        found = self._native.resumed_tensors()
        if found is None:
            raise LedgerError("the attempt begins from the initial state\nhint: look at `resumed` first")
        model, optimizer = ({name: Tensor(name, *rest) for name, *rest in part} for part in found)
        return model, optimizer

    def step(
        self,
        *,
        position: int,
        fed: Sequence[bytes],
        loss: float,
        gradient_norm: float,
        num_microbatches: int,
        groups: Sequence[GroupUpdate],
    ) -> int:
        """Records one update and returns its number.

        `position`: examples consumed before it. `fed`: what entered the model,
        taken from its tensors: of each example the bytes of its inputs and of the
        last target. `loss`: mean over target tokens in nats. `gradient_norm`:
        before clipping. A number that is not finite ends the attempt as failed."""
        updates = [
            (u.group, u.learning_rate, u.clip_coefficient, u.weight_decay, u.parameter_norm, u.update_norm)
            for u in groups
        ]
        try:
            return self._native.step(position, list(fed), loss, gradient_norm, num_microbatches, updates)
        except LedgerError:
            if not self._is_elsewhere() and self._native.is_over:
                _attempts.discard(self)
            raise

    def evaluation(self, stream: str, *, total_nats: float, num_examples: int, num_tokens: int) -> float:
        """Records an evaluation of the state after the last step; returns its value."""
        return self._native.evaluation(stream, total_nats, num_examples, num_tokens)

    def diagnostic(self, name: str, values: Mapping[str, float]) -> None:
        """Records numbers that explain and decide nothing."""
        self._native.diagnostic(name, dict(values))

    def save(self, model: Sequence[Tensor], optimizer: Sequence[Tensor], position: int) -> str:
        """Saves the state after the last step and waits until it is validated.

        `position`: examples that updates have consumed, where a resume goes on.
        A refusal before anything was recorded (nothing due, other tensors) can be
        mended and tried again. A save that failed behind its request cannot: then
        all but `fail` and `interrupt` is refused, and the next attempt resumes from
        the last checkpoint."""

        def parts(tensors: Sequence[Tensor]) -> list[tuple[str, str, list[int], bytes]]:
            return [(t.name, t.dtype, list(t.shape), t.data) for t in tensors]

        return self._native.save(parts(model), parts(optimizer), position)

    def finish(self) -> Finished:
        """Ends the run at its last step: selects, and writes the terminal entries."""
        finished = Finished(*self._native.finish())
        _attempts.discard(self)
        return finished

    def interrupt(self, reason: str) -> None:
        """Ends the attempt; the next one resumes."""
        self._native.interrupt(reason)
        _attempts.discard(self)

    def fail(self, reason: str, fault: Optional[str] = None) -> None:
        """Ends the attempt as failed; `fault` names what was seen, such as
        `data_changed`, `state_mismatch` or `storage_failed`."""
        self._native.fail(reason, fault)
        _attempts.discard(self)

    def _is_elsewhere(self) -> bool:
        """Whether this process was forked from the one of the attempt."""
        return os.getpid() != self._process

    def __enter__(self) -> Attempt:
        def terminate(number: int, frame: Any) -> None:
            if self._is_elsewhere():
                # A forked child has no attempt to end: the signal does what it did
                # before the block.
                signal.signal(number, signal.SIG_DFL if self._handler is None else self._handler)
                os.kill(os.getpid(), number)
                return
            raise _Terminated

        try:
            self._handler = signal.signal(signal.SIGTERM, terminate)
        except ValueError:
            # Not the main thread: whoever owns it decides about signals.
            self._handler = None
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> bool:
        if self._handler is not None:
            signal.signal(signal.SIGTERM, self._handler)
        if self._is_elsewhere():
            # The attempt goes on in the parent, whatever becomes of its child.
            return False
        if self._native.is_over:
            return False
        if kind is None or isinstance(error, SystemExit) and error.code in (None, 0):
            self.interrupt("the loop left without an end")
        elif issubclass(kind, (KeyboardInterrupt, _Terminated)):
            self.interrupt("SIGINT" if issubclass(kind, KeyboardInterrupt) else "SIGTERM")
        else:
            self.fail(f"{kind.__name__}: {error}")
        if kind is not None and issubclass(kind, _Terminated):
            raise SystemExit(128 + signal.SIGTERM) from None
        return False


def attempt(
    ledger: PathLike,
    *,
    backend: str,
    num_threads: int = 1,
    keys: Optional[PathLike] = None,
    program: Optional[PathLike] = None,
    restart: bool = False,
) -> Attempt:
    """Opens a run's ledger and starts an attempt, which resumes where there is a
    checkpoint. Use it as a context manager.

    `backend`: what executes tensors, as the contract froze it. `num_threads`: of
    the computation. `program`: the script that runs, which has to be a file of
    the contract's loop; default: the main script. `restart`: begin again where
    nothing can be resumed."""
    if program is None:
        program = getattr(sys.modules.get("__main__"), "__file__", None)
    native = NativeAttempt.begin(
        str(ledger),
        backend,
        runtime(),
        num_threads,
        None if keys is None else str(keys),
        None if program is None else str(program),
        restart,
    )
    return Attempt(native, f"{os.fspath(ledger)}.lock")
