"""The native half; use `governed_ledger` itself."""

from typing import Optional

Tensor = tuple[str, str, list[int], bytes]
Group = tuple[str, float, float, float, Optional[float], Optional[float]]

__version__: str

class LedgerError(Exception):
    hint: str

class NativeAttempt:
    process: int
    number: int
    run_id: str
    contract_json: str
    card_json: str
    last_step: int
    is_over: bool
    warnings: list[str]
    @staticmethod
    def begin(
        ledger: str,
        backend: str,
        runtime: str,
        num_threads: int,
        keys: Optional[str] = None,
        program: Optional[str] = None,
        restart: bool = False,
    ) -> NativeAttempt: ...
    def resumed(self) -> Optional[tuple[str, int, int]]: ...
    def resumed_tensors(self) -> Optional[tuple[list[Tensor], list[Tensor]]]: ...
    def due(self) -> tuple[list[str], bool, bool]: ...
    def groups(self) -> list[tuple[str, float, list[str]]]: ...
    def learning_rate(self, group: str, step: int) -> float: ...
    def clip_coefficient(self, gradient_norm: float) -> float: ...
    def batch(self, position: int, num_examples: int) -> list[bytes]: ...
    def stream_examples(self, stream: str) -> list[bytes]: ...
    def step(
        self,
        position: int,
        fed: list[bytes],
        loss: float,
        gradient_norm: float,
        num_microbatches: int,
        groups: list[Group],
    ) -> int: ...
    def evaluation(self, stream: str, total_nats: float, num_examples: int, num_tokens: int) -> float: ...
    def diagnostic(self, name: str, values: dict[str, float]) -> None: ...
    def save(self, model: list[Tensor], optimizer: list[Tensor], position: int) -> str: ...
    def finish(self) -> tuple[Optional[str], int, Optional[bool]]: ...
    def interrupt(self, reason: str) -> None: ...
    def fail(self, reason: str, fault: Optional[str] = None) -> None: ...
