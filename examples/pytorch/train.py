#!/usr/bin/env python3
"""Trains a byte-level language model in plain PyTorch, recorded under a frozen
contract.

    python3 loop/train.py run.db

Everything that decides the run comes from the contract: the model's shape, the
order of the examples, rates, batch, when to evaluate and save, when to end. The
loop below is ordinary PyTorch; what it says to the recorder is marked. Killed at
any moment, the same command resumes from the last validated checkpoint, and the
steps that it executes again have to come out as they were recorded.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import governed_ledger as ledger

NUM_THREADS = 1
"""PyTorch's sums depend on the number of threads, and the contract claims bits."""


class Norm(nn.Module):
    """RMSNorm (Zhang and Sennrich 2019)."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.epsilon))


def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Rotary positions with half rotation, as Llama in `transformers`."""
    first, second = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-second, first), dim=-1) * sine


class Attention(nn.Module):
    """Grouped-query attention; names are those of Llama's weights."""

    def __init__(self, shape: dict[str, Any]) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.size = shape["num_heads"], shape["num_kv_heads"], shape["head_dim"]
        width = shape["hidden_size"]
        self.q_proj = nn.Linear(width, self.heads * self.size, bias=False)
        self.k_proj = nn.Linear(width, self.kv_heads * self.size, bias=False)
        self.v_proj = nn.Linear(width, self.kv_heads * self.size, bias=False)
        self.o_proj = nn.Linear(self.heads * self.size, width, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor, mask: Tensor) -> Tensor:
        batch, length, _ = x.shape

        def split(y: Tensor, heads: int) -> Tensor:
            return y.view(batch, length, heads, self.size).transpose(1, 2)

        query = rotate(split(self.q_proj(x), self.heads), cosine, sine)
        key = rotate(split(self.k_proj(x), self.kv_heads), cosine, sine)
        value = split(self.v_proj(x), self.kv_heads)
        groups = self.heads // self.kv_heads
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        scores = query @ key.transpose(-2, -1) / math.sqrt(self.size) + mask
        return self.o_proj((scores.softmax(-1) @ value).transpose(1, 2).reshape(batch, length, -1))


class Mlp(nn.Module):
    """SwiGLU."""

    def __init__(self, shape: dict[str, Any]) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape["hidden_size"], shape["intermediate_size"], bias=False)
        self.up_proj = nn.Linear(shape["hidden_size"], shape["intermediate_size"], bias=False)
        self.down_proj = nn.Linear(shape["intermediate_size"], shape["hidden_size"], bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """Attention and MLP, each with a residual."""

    def __init__(self, shape: dict[str, Any]) -> None:
        super().__init__()
        self.input_layernorm = Norm(shape["hidden_size"], shape["rms_norm_eps"])
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = Norm(shape["hidden_size"], shape["rms_norm_eps"])
        self.mlp = Mlp(shape)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor, mask: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cosine, sine, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """What lies under `model.` in the weights."""

    def __init__(self, shape: dict[str, Any]) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape["vocab_size"], shape["hidden_size"])
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape["num_layers"]))
        self.norm = Norm(shape["hidden_size"], shape["rms_norm_eps"])


class Llama(nn.Module):
    """The model of a contract's architecture."""

    def __init__(self, shape: dict[str, Any], seed: int) -> None:
        super().__init__()
        self.model = Decoder(shape)
        self.is_tied = shape["tied_embeddings"]
        if not self.is_tied:
            self.lm_head = nn.Linear(shape["hidden_size"], shape["vocab_size"], bias=False)
        length, size = shape["context_length"], shape["head_dim"]
        frequencies = shape["rope_theta"] ** (-torch.arange(0, size, 2).float() / size)
        angles = torch.outer(torch.arange(length).float(), frequencies).repeat(1, 2)
        self.register_buffer("cosine", angles.cos(), persistent=False)
        self.register_buffer("sine", angles.sin(), persistent=False)
        self.register_buffer("mask", torch.full((length, length), -math.inf).triu(1), persistent=False)
        generator = torch.Generator().manual_seed(seed)
        for _, parameter in sorted(self.named_parameters()):
            if parameter.dim() == 2:
                parameter.data.normal_(0.0, shape["initializer_std"], generator=generator)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.model.embed_tokens(tokens)
        for layer in self.model.layers:
            x = layer(x, self.cosine, self.sine, self.mask)
        x = self.model.norm(x)
        return functional.linear(x, self.model.embed_tokens.weight) if self.is_tied else self.lm_head(x)


def tensors_of(examples: list[bytes], length: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets, `[examples, length]`; -100 where there is no target."""
    inputs = torch.zeros(len(examples), length, dtype=torch.long)
    targets = torch.full((len(examples), length), -100, dtype=torch.long)
    for row, example in enumerate(examples):
        ids = torch.tensor(list(example))
        inputs[row, : len(ids) - 1] = ids[:-1]
        targets[row, : len(ids) - 1] = ids[1:]
    return inputs, targets


def bytes_of(inputs: Tensor, targets: Tensor) -> list[bytes]:
    """What enters the model, read back from its tensors and not from the files."""
    fed = []
    for row, target in zip(inputs.tolist(), targets.tolist()):
        length = sum(1 for token in target if token >= 0)
        fed.append(bytes(row[:length]) + bytes([target[length - 1]]))
    return fed


def nats_of(model: Llama, inputs: Tensor, targets: Tensor) -> Tensor:
    """Summed negative log likelihood of the targets."""
    logits = model(inputs)
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum")


def norm_of(tensors: Iterable[Tensor]) -> float:
    """Root of the sum of all squares, in binary64."""
    return math.sqrt(sum(tensor.detach().double().pow(2).sum().item() for tensor in tensors))


def saved(name: str, tensor: Tensor) -> ledger.Tensor:
    """A tensor as the recorder takes it."""
    array = tensor.detach().to(torch.float32).contiguous().numpy()
    return ledger.Tensor(name, "F32", list(tensor.shape), array.astype("<f4").tobytes())


def restored(tensor: ledger.Tensor) -> Tensor:
    """A tensor of a checkpoint."""
    return torch.frombuffer(bytearray(tensor.data), dtype=torch.float32).reshape(list(tensor.shape))


def make_optimizer(model: Llama, attempt: ledger.Attempt, step: int) -> torch.optim.AdamW:
    """AdamW with the policy card's groups, as it stands after `step` updates."""
    parameters = dict(model.named_parameters())
    groups = [
        {"params": [parameters[path] for path in paths], "name": name, "weight_decay": decay}
        for name, decay, paths in attempt.groups()
    ]
    rule = attempt.card["update"]
    optimizer = torch.optim.AdamW(groups, lr=0.0, betas=(rule["beta1"], rule["beta2"]), eps=rule["epsilon"])
    for parameter in parameters.values():
        optimizer.state[parameter] = {
            "step": torch.tensor(float(step)),
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return optimizer


def evaluate(attempt: ledger.Attempt, model: Llama, stream: str, length: int) -> float:
    """Evaluates a stream and records it."""
    total, num_tokens = 0.0, 0
    examples = attempt.stream_examples(stream)
    model.eval()
    with torch.no_grad():
        for example in examples:
            total += nats_of(model, *tensors_of([example], length)).item()
            num_tokens += len(example) - 1
    model.train()
    return attempt.evaluation(stream, total_nats=total, num_examples=len(examples), num_tokens=num_tokens)


def save(attempt: ledger.Attempt, model: Llama, optimizer: torch.optim.AdamW, position: int) -> str:
    """Hands every part of the state to the recorder."""
    parameters = dict(model.named_parameters())
    moments = [
        saved(f"{name}.{moment}", optimizer.state[parameter][moment])
        for name, parameter in parameters.items()
        for moment in ("exp_avg", "exp_avg_sq")
    ]
    return attempt.save([saved(name, value) for name, value in parameters.items()], moments, position)


def update(
    attempt: ledger.Attempt, model: Llama, optimizer: torch.optim.AdamW, position: int, step: int
) -> tuple[int, float]:
    """One update; returns how many examples it consumed, and its loss."""
    contract = attempt.contract
    length, size = contract["architecture"]["context_length"], contract["batch"]["microbatch_examples"]
    examples = attempt.batch(position)
    num_tokens = sum(len(example) - 1 for example in examples)
    optimizer.zero_grad(set_to_none=True)
    fed: list[bytes] = []
    loss, num_microbatches = 0.0, 0
    for first in range(0, len(examples), size):
        inputs, targets = tensors_of(examples[first : first + size], length)
        fed += bytes_of(inputs, targets)
        mean = nats_of(model, inputs, targets) / num_tokens
        mean.backward()
        loss += mean.item()
        num_microbatches += 1
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    norm = norm_of(gradients)
    coefficient = attempt.clip_coefficient(norm)
    if coefficient < 1.0:
        for gradient in gradients:
            gradient.mul_(coefficient)
    for group in optimizer.param_groups:
        group["lr"] = attempt.learning_rate(group["name"], step)
    before = [[parameter.detach().double() for parameter in group["params"]] for group in optimizer.param_groups]
    optimizer.step()
    # What the recorder is told: what entered the model, what the optimizer used,
    # and what came of it, which the audit compares with the checkpoints.
    attempt.step(
        position=position,
        fed=fed,
        loss=loss,
        gradient_norm=norm,
        num_microbatches=num_microbatches,
        groups=[
            ledger.GroupUpdate(
                group["name"],
                group["lr"],
                coefficient,
                group["weight_decay"],
                parameter_norm=norm_of(group["params"]),
                update_norm=norm_of(now.detach().double() - old for now, old in zip(group["params"], olds)),
            )
            for group, olds in zip(optimizer.param_groups, before)
        ],
    )
    return len(examples), loss


def train(attempt: ledger.Attempt) -> None:
    """The loop."""
    contract = attempt.contract
    shape = contract["architecture"]
    model = Llama(shape, seed=int(contract["seeds"]["initialization"]))
    step = position = 0
    if attempt.resumed:
        step, position = attempt.resumed.step, attempt.resumed.position
        print(f"attempt {attempt.number} resumes from {attempt.resumed.name}", flush=True)
    optimizer = make_optimizer(model, attempt, step)
    if attempt.resumed:
        weights, moments = attempt.resumed_tensors()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(restored(weights[name]))
                for moment in ("exp_avg", "exp_avg_sq"):
                    optimizer.state[parameter][moment].copy_(restored(moments[f"{name}.{moment}"]))
    while True:
        due = attempt.due()
        for stream in due.evaluations:
            value = evaluate(attempt, model, stream, shape["context_length"])
            print(f"eval {step:>6}  {stream} {value:.4f}", flush=True)
        if due.checkpoint:
            print(f"saved {save(attempt, model, optimizer, position)}", flush=True)
        if due.is_last:
            break
        consumed, loss = update(attempt, model, optimizer, position, step + 1)
        step, position = step + 1, position + consumed
        print(f"step {step:>6}  loss {loss:.4f}", flush=True)
    finished = attempt.finish()
    print(f"finished at step {finished.last_step}; selected {finished.candidate}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("ledger", help="the run.db of a contract with the profile external-loop")
    parser.add_argument("--keys", help="folder of the role keys")
    arguments = parser.parse_args()
    torch.set_num_threads(NUM_THREADS)
    torch.use_deterministic_algorithms(True)
    backend = f"torch {torch.__version__}"
    with ledger.attempt(arguments.ledger, backend=backend, num_threads=NUM_THREADS, keys=arguments.keys) as attempt:
        train(attempt)


if __name__ == "__main__":
    main()
