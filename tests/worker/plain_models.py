"""Plain models as people write them, each small, and each with something in which a proof could stumble."""

import math
from dataclasses import dataclass
from functools import partial, reduce
from types import MappingProxyType, SimpleNamespace
from typing import ClassVar

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from fp8bench.workloads.llama import LLM1B
from fp8bench.workloads.protocol import Batch

WIDTH, WORDS, TOKENS, IMAGE, CLASSES = 32, 64, 16, 16, 10


class Block(nn.Module):
    """A residual MLP."""

    def __init__(self, width=WIDTH):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def added(self, x):
        return self.down(F.gelu(self.up(self.norm(x))))

    def forward(self, x):
        return x + self.added(x)


class Attention(nn.Module):
    """Queries, keys and values apart, with biases: that of keys has no gradient but rounding."""

    def __init__(self, width=WIDTH, heads=2):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        y = self.norm(x)
        q, k, v = (one(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for one in (self.q, self.k, self.v))
        return x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class OfTokens(nn.Module):
    """[batch, tokens] integers to logits of [batch, tokens, words]."""

    kinds = (Block, Block)
    own = MappingProxyType({})

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(kind() for kind in self.kinds)
        self.head = nn.Linear(WIDTH, WORDS)
        for name, make in self.own.items():
            setattr(self, name, make(self))

    def through(self, x):
        for block in self.blocks:
            x = block(x)
        return x

    between = through

    def forward(self, tokens):
        return self.head(self.between(self.embed(tokens)))


def block(forward=Block.forward, **own):
    """A kind of block. own: what it has beside a Block's parts."""

    class Changed(Block):
        def __init__(self):
            super().__init__()
            for name, make in own.items():
                setattr(self, name, make())

    Changed.forward = forward
    return Changed


def model(name, kinds=(Block, Block), between=OfTokens.through, forward=OfTokens.forward, **own):
    """A kind of model. own: what it has beside the parts of OfTokens, or in their place, made of the model itself."""
    return type(name, (OfTokens,), {"kinds": kinds, "between": between, "forward": forward, "own": own})


def tied_head(model):
    head = nn.Linear(WIDTH, WORDS, bias=False)
    head.weight = model.embed.weight
    return head


Attending = model("Attending", (Attention, Block, Attention, Block))
Tied = model("Tied", head=tied_head)
TiedByHand = model(
    "TiedByHand", forward=lambda m, tokens: F.linear(m.between(m.embed(tokens)), m.embed.weight), head=lambda _: None
)
Twice = model("Twice", between=lambda m, x: m.blocks[0](m.blocks[1](m.blocks[0](x))))
Shared = model("Shared", blocks=lambda m: nn.ModuleList([m.blocks[0]] * 3))
Padded = model("Padded", embed=lambda _: nn.Embedding(WORDS, WIDTH, padding_idx=3))
Unused = model(
    "Unused", (Block, block(spare=lambda: nn.Linear(WIDTH, WIDTH))), spare=lambda _: nn.Parameter(torch.ones(5))
)
Patched = model(
    "Patched", patched=lambda m: setattr(m.blocks[1], "forward", lambda x, block=m.blocks[1]: x - block.added(x))
)
Recurrent = model(
    "Recurrent", between=lambda m, x: m.through(m.gru(x)[0]), gru=lambda _: nn.GRU(WIDTH, WIDTH, batch_first=True)
)
WeightNormed = model(
    "WeightNormed",
    between=lambda m, x: m.through(m.back(m.normed(x))),
    normed=lambda _: nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, 24)),
    back=lambda _: nn.Linear(24, WIDTH),
)
Positions = model(
    "Positions",
    forward=lambda m, tokens: m.head(m.between(m.scale * (m.embed(tokens) + m.position(torch.arange(TOKENS))))),
    position=lambda _: nn.Embedding(TOKENS, WIDTH),
    scale=lambda _: nn.Parameter(torch.ones(())),
)
# What blocks add has a factor of zero at first, one number for each block.
Zeros = model("Zeros", (block(lambda b, x: x + b.gate * b.added(x), gate=lambda: nn.Parameter(torch.zeros(()))),) * 6)
# Complex numbers pass between two halves of a block, and between a block and the root.
Waves = model(
    "Waves",
    between=lambda m, x: m.through(torch.fft.irfft(m.mixes(x), n=WIDTH, dim=-1)),
    mixes=lambda _: block(lambda b, x: torch.fft.rfft((x + b.added(x)).float(), dim=-1))(),
)
# A block gives an object of its own.
Opaque = model(
    "Opaque",
    between=lambda m, x: m.through(m.boxes(x).inside),
    boxes=lambda _: block(lambda b, x: SimpleNamespace(inside=x + b.added(x)))(),
)


# One weight of a block and the embedding are not trained.
Frozen = model("Frozen", untrained=lambda m: [one.requires_grad_(False) for one in (m.embed, m.blocks[0].up.weight)])


def add_in_place(block, x):
    x += block.shift
    return Block.forward(block, x).mul_(0.9)


# Blocks add to their input, the root to what blocks gave.
InPlace = model(
    "InPlace",
    (block(add_in_place, shift=lambda: nn.Parameter(torch.zeros(WIDTH))),) * 2,
    forward=lambda m, tokens: m.head(m.between(m.embed(tokens).add_(m.position)).mul_(1.5)),
    position=lambda _: nn.Parameter(torch.randn(TOKENS, WIDTH) / 10),
)


@dataclass
class Hidden:
    state: torch.Tensor
    depth: int


def second(block, hidden, mask=None):
    return Block.forward(block, hidden.state).masked_fill(mask == -math.inf, 0.0), hidden.depth


class Nested(OfTokens):
    """Blocks take keywords, tuples and dicts, and give a dataclass, a tuple or a dict."""

    def __init__(self):
        super().__init__()
        self.first = block(
            lambda b, *, hidden, extra: Hidden(hidden + b.added(hidden * extra[0]["cos"]) * extra[1]["gain"], 1)
        )()
        self.second = block(second)()
        self.third = block(lambda b, both: {"state": both[0] + b.added(both[0]), "none": None})()

    def between(self, x):
        angles = torch.linspace(0, 1, WIDTH)
        hidden = self.first(hidden=x, extra=({"cos": angles.cos()}, {"gain": 0.5}))
        mask = torch.zeros(WIDTH)
        mask[0] = -math.inf
        return self.through(self.third(self.second(hidden, mask=mask))["state"])


# Blocks are computed again in the backward pass.
Checkpointed = model(
    "Checkpointed",
    between=lambda m, x: reduce(lambda x, one: checkpoint(one, x, use_reentrant=False), m.blocks, x),
)


def rotated(block, x):
    normed = block.norm(x.float()).to(x.dtype)
    return x + block.down(F.gelu(block.up((normed.double() @ block.table).float())))


def counted(block, x):
    block.passes += 1
    block.mean.lerp_(x.detach().float().mean((0, 1)), 0.1)
    return Block.forward(block, x)


# A buffer of float64 inside a block, and norms that are computed in float32 by hand.
Doubles = model(
    "Doubles",
    (block(rotated, table=lambda: nn.Buffer(torch.randn(WIDTH, WIDTH, dtype=torch.float64) / WIDTH**0.5)),) * 2,
)
# Buffers that each pass changes.
Counting = model(
    "Counting",
    (
        block(
            counted,
            passes=lambda: nn.Buffer(torch.zeros((), dtype=torch.int64)),
            mean=lambda: nn.Buffer(torch.zeros(WIDTH)),
        ),
    )
    * 2,
)


def encoded(model, x):
    mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
    for block in model.blocks:
        x = block(x, src_mask=mask, is_causal=True)
    return model.last(x + model.attention(x, x, x, need_weights=False)[0])


# torch's own layers, which have a faster path without gradients, and a mask of minus infinities.
Encoder = model(
    "Encoder",
    (partial(nn.TransformerEncoderLayer, WIDTH, 2, 2 * WIDTH, 0.0, batch_first=True),) * 2,
    encoded,
    attention=lambda _: nn.MultiheadAttention(WIDTH, 2, batch_first=True),
    last=lambda _: nn.LayerNorm(WIDTH),
)


class ByHand(nn.Module):
    """Looks its tokens up by hand."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(WORDS, WORDS))

    def forward(self, tokens):
        return self.table[tokens]


class Convolutions(nn.Module):
    """No BatchNorm, no repeated blocks; changes its input in place."""

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(inplace=True), nn.Conv2d(16, 32, 3, 2)
        )
        self.hidden = nn.Linear(32, 32)
        self.head = nn.Linear(32, CLASSES)

    def forward(self, x):
        x.sub_(0.1)
        return self.head(F.relu(self.hidden(self.features(x).mean((2, 3)))))


class OnTheRoot(nn.Module):
    """Every weight is the root's own but one."""

    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList(torch.randn(48, width) / width**0.5 for width in (3 * IMAGE * IMAGE, 48, 48))
        self.shift = nn.Parameter(torch.zeros(48))
        self.middle = nn.Linear(48, 48)
        self.head = nn.Linear(48, CLASSES)

    def forward(self, x):
        x = x.flatten(1)
        for weight in self.weights:
            x = F.relu(F.linear(x, weight) + self.shift)
        return self.head(self.middle(x))


class InARow(nn.Sequential):
    def __init__(self):
        first, middle, last = nn.Linear(3 * IMAGE * IMAGE, 64), nn.Linear(64, 64), nn.Linear(64, CLASSES)
        super().__init__(nn.Flatten(), first, nn.ReLU(), middle, nn.ReLU(), last)


OF_TOKENS = (
    *(OfTokens, Attending, Tied, TiedByHand, Twice, Shared, Padded, Frozen, Unused, InPlace, Positions, Nested, Opaque),
    *(Checkpointed, Doubles, Counting, Zeros, Patched, Waves, Recurrent, Encoder, WeightNormed),
)
OF_IMAGES = (Convolutions, OnTheRoot, InARow)


class PlainModel:
    """A workload of one such model. piece: the samples that a proof takes."""

    unit = "samples"
    piece = 16
    causal = False

    def __init__(self, model, seed=0):
        self.name, self.model, self.seed = model.__name__, model, seed

    def build(self, device):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return self.model().to(device)

    def batches(self, batch_size, rank, device):
        generator = torch.Generator().manual_seed(rank)
        while True:
            if self.model in OF_IMAGES:
                images = torch.randn(batch_size, 3, IMAGE, IMAGE, generator=generator)
                yield Batch(images, torch.randint(CLASSES, (batch_size,), generator=generator))
            else:
                tokens = torch.randint(WORDS, (batch_size, TOKENS + 1), generator=generator)
                yield Batch(tokens[:, :-1], tokens[:, 1:])

    def loss(self, model, batch):
        logits = model(batch.inputs)
        return F.cross_entropy(logits.flatten(0, -2), batch.targets.flatten())


class DeepLlama(LLM1B):
    """As deep as llm-1b, and narrow. Its weights are scaled: each layer has the gain of one that is 2048 wide."""

    architecture: ClassVar = {
        **LLM1B.architecture,
        **dict(hidden_size=128, num_attention_heads=4, num_key_value_heads=2, intermediate_size=512, vocab_size=512),
    }
    usual_length: ClassVar = 64
