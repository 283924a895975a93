"""An outside package's modes and workload, as a user would write them: plain classes, inheriting nothing of
fp8bench.
"""

import os
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn

from fp8bench.schema.errors import ModeUnavailable
from fp8bench.worker import clock
from fp8bench.workloads.protocol import Batch


class Polite:
    """The least that a mode can be."""

    name = "outside-polite"

    def __init__(self, recipe=None):
        self.recipe = recipe

    def check(self, device):
        pass

    def convert(self, model):
        return model

    def forward_context(self):
        return nullcontext()

    def evidence(self, model):
        return {"recipe": self.recipe, "favourite_colour": "green"}


class Unavailable(Polite):
    name = "outside-unavailable"

    def check(self, device):
        raise ModeUnavailable("this mode needs a GPU from the future", "Wait")


class Raises(Polite):
    """Rank 1 raises while the others go on to a collective that will never end."""

    name = "outside-raises"

    def evidence(self, model):
        if dist.get_rank() == 1:
            raise ZeroDivisionError("rank one has had enough")
        return super().evidence(model)


class AcrossTheBatch(Polite):
    """Fails the gate."""

    name = "outside-across-the-batch"

    def convert(self, model):
        class Block(nn.Module):
            def __init__(self, block):
                super().__init__()
                self.block = block

            def forward(self, x):
                return self.block(x.transpose(0, 1)).transpose(0, 1)

        model.blocks = nn.Sequential(*(Block(block) for block in model.blocks))
        return model


class Waits(Polite):
    """Each pass takes longer by what the variable says, seconds, by the clock that times steps: a slow-down can be
    planted that nobody waits for, and beside which no noise of a busy host shows.
    """

    name = "outside-waits"
    waited_s = 0.0

    def __init__(self, recipe=None):
        super().__init__(recipe)
        clock.perf_counter = lambda: time.perf_counter() + Waits.waited_s

    def forward_context(self):
        Waits.waited_s += float(os.environ.get("OUTSIDE_WAIT_S", "0"))
        return super().forward_context()


class TinyLinear:
    """A workload of one layer."""

    name = "outside-linear"
    unit = "images"

    def __init__(self, data="loader", workers=0, seed=0):
        self.seed = seed

    def build(self, device):
        torch.manual_seed(self.seed)
        return nn.Linear(16, 4).to(device)

    def batches(self, batch_size, rank, device):
        generator = torch.Generator().manual_seed(rank)
        while True:
            inputs = torch.randn(batch_size, 16, generator=generator)
            yield Batch(inputs.to(device), torch.arange(batch_size).to(device) % 4)

    def loss(self, model, batch):
        return nn.functional.cross_entropy(model(batch.inputs), batch.targets)

    def units_per_step(self, batch_size):
        return batch_size

    def flops_per_step(self, batch_size):
        return batch_size * 6 * 16 * 4

    def sizes(self):
        return {"width": 16}


class Attention(nn.Module):
    """A causal block with rotary-free attention and a feed-forward part, each behind a norm."""

    def __init__(self, width):
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        heads = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.qkv(self.before(x)).chunk(3, -1))
        seen = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.between(x))))


class Language(nn.Module):
    """Logits [batch, sequence, words] of the next token."""

    def __init__(self, words, length, width, depth):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Parameter(torch.randn(length, width) * 0.02)
        self.blocks = nn.ModuleList(Attention(width) for _ in range(depth))
        self.head = nn.Linear(width, words)

    def forward(self, tokens):
        x = self.words(tokens) + self.places[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class TinyLanguage:
    """A language model of two blocks, whose sizes can be changed."""

    name = "outside-language"
    unit = "tokens"
    causal = True

    def __init__(self, data="loader", workers=0, seed=0, **sizes):
        self.seed = seed
        self._sizes = {"vocab_size": 512, "sequence_length": 32, "width": 32, "depth": 2, **sizes}

    def resized(self, **sizes):
        return TinyLanguage(seed=self.seed, **{**self._sizes, **sizes})

    def build(self, device):
        torch.manual_seed(self.seed)
        return Language(*self._sizes.values()).to(device)

    def batches(self, batch_size, rank, device):
        generator = torch.Generator().manual_seed(1000 * self.seed + rank)
        while True:
            shape = (batch_size, self._sizes["sequence_length"] + 1)
            tokens = torch.randint(self._sizes["vocab_size"], shape, generator=generator).to(device)
            yield Batch(tokens[:, :-1], tokens[:, 1:])

    def loss(self, model, batch):
        return nn.functional.cross_entropy(model(batch.inputs).flatten(0, 1), batch.targets.flatten())

    def units_per_step(self, batch_size):
        return batch_size * self._sizes["sequence_length"]

    def flops_per_step(self, batch_size):
        width, depth, words = (self._sizes[name] for name in ("width", "depth", "vocab_size"))
        return 6 * self.units_per_step(batch_size) * width * (8 * width * depth + words)

    def sizes(self):
        return dict(self._sizes)


class Narrow(TinyLinear):
    """Its last rank has no memory for more than 40 samples."""

    name = "outside-narrow"

    def batches(self, batch_size, rank, device):
        if batch_size > 40 and rank == 1:
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 1")
        return super().batches(batch_size, rank, device)
