#!/usr/bin/env python3
"""The PyTorch side of scripts/bench.

`step`: trains the model of a contract's architecture, with its dropout, eagerly
on the CPU. It reads lines from stdin, each the number of updates to run, and
answers each with one line of JSON: seconds and tokens. The caller interleaves
these blocks with its own, so that both meet the same machine.

`logits`: loads an exported candidate in `transformers` and compares its logits
with those of a reference file, as `{"tokens": [...], "logits": [[...], ...]}`.
"""

import argparse
import json
import math
import pathlib
import sys
import time

import torch
from torch import nn
from torch.nn import functional


class Norm(nn.Module):
    """RMSNorm (Zhang and Sennrich 2019)."""

    def __init__(self, width, epsilon):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.epsilon))


def rotate(x, cosine, sine):
    """Rotary positions with half rotation, as Llama in `transformers`."""
    first, second = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-second, first), dim=-1) * sine


class Block(nn.Module):
    """Attention and gated MLP, each with a residual."""

    def __init__(self, shape):
        super().__init__()
        width, heads, kv_heads, size = (shape[k] for k in ("hidden_size", "num_heads", "num_kv_heads", "head_dim"))
        self.heads, self.kv_heads, self.size = heads, kv_heads, size
        # Of what each branch adds, as the trainer's.
        self.dropout = nn.Dropout(shape["dropout"])
        self.input_norm = Norm(width, shape["rms_norm_eps"])
        self.output_norm = Norm(width, shape["rms_norm_eps"])
        self.query = nn.Linear(width, heads * size, bias=False)
        self.key = nn.Linear(width, kv_heads * size, bias=False)
        self.value = nn.Linear(width, kv_heads * size, bias=False)
        self.output = nn.Linear(heads * size, width, bias=False)
        self.gate = nn.Linear(width, shape["intermediate_size"], bias=False)
        self.up = nn.Linear(width, shape["intermediate_size"], bias=False)
        self.down = nn.Linear(shape["intermediate_size"], width, bias=False)

    def forward(self, x, cosine, sine, mask):
        batch, length, _ = x.shape
        normed = self.input_norm(x)
        split = lambda y, heads: y.view(batch, length, heads, self.size).transpose(1, 2)
        query = rotate(split(self.query(normed), self.heads), cosine, sine)
        key = rotate(split(self.key(normed), self.kv_heads), cosine, sine)
        value = split(self.value(normed), self.kv_heads)
        groups = self.heads // self.kv_heads
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        scores = query @ key.transpose(-2, -1) / math.sqrt(self.size) + mask
        mixed = (scores.softmax(-1) @ value).transpose(1, 2).reshape(batch, length, -1)
        x = x + self.dropout(self.output(mixed))
        normed = self.output_norm(x)
        return x + self.dropout(self.down(functional.silu(self.gate(normed)) * self.up(normed)))


class Llama(nn.Module):
    """The decoder that a contract's architecture describes."""

    def __init__(self, shape):
        super().__init__()
        self.embedding = nn.Embedding(shape["vocab_size"], shape["hidden_size"])
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape["num_layers"]))
        self.norm = Norm(shape["hidden_size"], shape["rms_norm_eps"])
        self.head = nn.Linear(shape["hidden_size"], shape["vocab_size"], bias=False)
        if shape["tied_embeddings"]:
            self.head.weight = self.embedding.weight
        length, size = shape["context_length"], shape["head_dim"]
        frequencies = shape["rope_theta"] ** (-torch.arange(0, size, 2).float() / size)
        angles = torch.outer(torch.arange(length).float(), frequencies)
        angles = torch.cat((angles, angles), dim=-1)
        self.register_buffer("cosine", angles.cos())
        self.register_buffer("sine", angles.sin())
        self.register_buffer("mask", torch.full((length, length), -math.inf).triu(1))
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=shape["initializer_std"])

    def forward(self, tokens):
        length = tokens.shape[1]
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.cosine[:length], self.sine[:length], self.mask[:length, :length])
        return self.head(self.norm(x))


def step(arguments):
    """Answers each number of updates on stdin with the time that they took."""
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    contract = json.loads(arguments.contract.read_text())
    shape = contract["architecture"]
    batch = contract["batch"]
    model = Llama(shape)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    examples, length = batch["microbatch_examples"], shape["context_length"]
    text = torch.randint(0, shape["vocab_size"], (batch["accumulation"], examples, length + 1))

    def update():
        optimizer.zero_grad(set_to_none=True)
        for microbatch in text:
            logits = model(microbatch[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1), microbatch[:, 1:].flatten())
            (loss / len(text)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    print(json.dumps({"torch": torch.__version__, "threads": arguments.threads, "num_parameters": num_parameters}), flush=True)
    for line in sys.stdin:
        num_updates = int(line)
        started = time.perf_counter()
        for _ in range(num_updates):
            update()
        seconds = time.perf_counter() - started
        tokens = num_updates * len(text) * examples * length
        print(json.dumps({"seconds": seconds, "tokens": tokens}), flush=True)


def logits(arguments):
    """Compares a candidate's logits in `transformers` with a reference."""
    import transformers

    model = transformers.LlamaForCausalLM.from_pretrained(str(arguments.candidate), torch_dtype=torch.float32)
    model.eval()
    reference = json.loads(arguments.reference.read_text())
    expected = torch.tensor(reference["logits"], dtype=torch.float64)
    with torch.no_grad():
        actual = model(torch.tensor([reference["tokens"]])).logits[0].double()
    if actual.shape != expected.shape:
        raise SystemExit(f"logits have shape {list(actual.shape)}, the reference {list(expected.shape)}")
    difference = (actual - expected).abs().max().item()
    spread = expected.std().item()
    print(json.dumps({
        "transformers": transformers.__version__,
        "num_positions": expected.shape[0],
        "max_absolute_difference": difference,
        "standard_deviation": spread,
    }))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    training = commands.add_parser("step")
    training.add_argument("--contract", type=pathlib.Path, required=True)
    training.add_argument("--threads", type=int, required=True)
    compare = commands.add_parser("logits")
    compare.add_argument("--candidate", type=pathlib.Path, required=True)
    compare.add_argument("--reference", type=pathlib.Path, required=True)
    arguments = parser.parse_args()
    {"step": step, "logits": logits}[arguments.command](arguments)


if __name__ == "__main__":
    main()
