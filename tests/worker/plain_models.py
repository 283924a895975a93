"""Plain models as people write them, each small, and each with something in which a proof could stumble."""

import math
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
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
    """[batch, tokens] integers to logits of [batch, tokens, words]; `between` is what is special."""

    kinds = (Block, Block)

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.ModuleList(kind() for kind in self.kinds)
        self.head = nn.Linear(WIDTH, WORDS)
        self.more()

    def more(self):
        """What a kind of model has beside these."""

    def between(self, x):
        for block in self.blocks:
            x = block(x)
        return x

    def forward(self, tokens):
        return self.head(self.between(self.embed(tokens)))


class Attending(OfTokens):
    kinds = (Attention, Block, Attention, Block)


class Tied(OfTokens):
    """The head has the embedding's weight."""

    def more(self):
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.embed.weight


class TiedByHand(OfTokens):
    """The root's forward uses the embedding's weight for its logits."""

    def more(self):
        self.head = None

    def forward(self, tokens):
        return F.linear(self.between(self.embed(tokens)), self.embed.weight)


class Twice(OfTokens):
    """Calls one block twice, another once."""

    def between(self, x):
        return self.blocks[0](self.blocks[1](self.blocks[0](x)))


class Shared(OfTokens):
    """One block stands twice in the list."""

    def more(self):
        self.blocks = nn.ModuleList([self.blocks[0]] * 3)


class Padded(OfTokens):
    def more(self):
        self.embed = nn.Embedding(WORDS, WIDTH, padding_idx=3)


class Frozen(OfTokens):
    """One weight of a block and the embedding are not trained."""

    def more(self):
        self.embed.requires_grad_(False)
        self.blocks[0].up.weight.requires_grad_(False)


class Unused(OfTokens):
    """A weight of a block and one of the root take no part."""

    def more(self):
        self.spare = nn.Parameter(torch.ones(5))
        self.blocks[1].spare = nn.Linear(WIDTH, WIDTH)


class InPlace(OfTokens):
    """Blocks add to their input, the root to what blocks gave."""

    class Adds(Block):
        def __init__(self):
            super().__init__()
            self.shift = nn.Parameter(torch.zeros(WIDTH))

        def forward(self, x):
            x += self.shift
            return super().forward(x).mul_(0.9)

    kinds = (Adds, Adds)

    def more(self):
        self.position = nn.Parameter(torch.randn(TOKENS, WIDTH) / 10)

    def forward(self, tokens):
        x = self.embed(tokens)
        x += self.position
        return self.head(self.between(x).mul_(1.5))


class Positions(OfTokens):
    """A second embedding, of positions, and a scale of its own on the root."""

    def more(self):
        self.position = nn.Embedding(TOKENS, WIDTH)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1])
        return self.head(self.between(self.scale * (self.embed(tokens) + self.position(places))))


@dataclass
class Hidden:
    state: torch.Tensor
    depth: int


class Nested(OfTokens):
    """Blocks take keywords, tuples and dicts, and give a dataclass, a tuple or a dict."""

    class First(Block):
        def forward(self, *, hidden, extra):
            rotation, flags = extra
            y = hidden + self.added(hidden * rotation["cos"]) * flags["gain"]
            return Hidden(y, 1)

    class Second(Block):
        def forward(self, hidden, mask=None):
            return super().forward(hidden.state).masked_fill(mask == -math.inf, 0.0), hidden.depth

    class Third(Block):
        def forward(self, both):
            return {"state": super().forward(both[0]), "none": None}

    def more(self):
        self.first, self.second, self.third = self.First(), self.Second(), self.Third()

    def between(self, x):
        angles = torch.linspace(0, 1, WIDTH)
        hidden = self.first(hidden=x, extra=({"cos": angles.cos()}, {"gain": 0.5}))
        mask = torch.zeros(WIDTH)
        mask[0] = -math.inf
        return super().between(self.third(self.second(hidden, mask=mask))["state"])


class Opaque(OfTokens):
    """A block gives an object of its own."""

    class Box:
        def __init__(self, inside):
            self.inside = inside

    class Boxes(Block):
        def forward(self, x):
            return Opaque.Box(super().forward(x))

    def more(self):
        self.boxes = self.Boxes()

    def between(self, x):
        return super().between(self.boxes(x).inside)


class Checkpointed(OfTokens):
    """Blocks are computed again in the backward pass."""

    def between(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        return x


class Doubles(OfTokens):
    """A buffer of float64 inside a block, and norms that are computed in float32 by hand."""

    class Rotates(Block):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", torch.randn(WIDTH, WIDTH, dtype=torch.float64) / WIDTH**0.5)

        def added(self, x):
            normed = self.norm(x.float()).to(x.dtype)
            return self.down(F.gelu(self.up((normed.double() @ self.table).float())))

    kinds = (Rotates, Rotates)


class Counting(OfTokens):
    """A buffer that each pass changes."""

    class Counts(Block):
        def __init__(self):
            super().__init__()
            self.register_buffer("passes", torch.zeros((), dtype=torch.int64))
            self.register_buffer("mean", torch.zeros(WIDTH))

        def forward(self, x):
            self.passes += 1
            self.mean.lerp_(x.detach().float().mean((0, 1)), 0.1)
            return super().forward(x)

    kinds = (Counts, Counts)


class Zeros(OfTokens):
    """What blocks add has a factor of zero at first, one number for each block."""

    class Gated(Block):
        def __init__(self):
            super().__init__()
            self.gate = nn.Parameter(torch.zeros(()))

        def forward(self, x):
            return x + self.gate * self.added(x)

    kinds = (Gated,) * 6


class Patched(OfTokens):
    """A block's forward is an attribute of the block."""

    def more(self):
        block = self.blocks[1]
        block.forward = lambda x: x - block.added(x)


class Waves(OfTokens):
    """Complex numbers pass between two halves of a block, and between a block and the root."""

    class Mixes(Block):
        def forward(self, x):
            return torch.fft.rfft(super().forward(x).float(), dim=-1)

    def more(self):
        self.mixes = self.Mixes()

    def between(self, x):
        return super().between(torch.fft.irfft(self.mixes(x), n=WIDTH, dim=-1))


class Recurrent(OfTokens):
    """A GRU beside the blocks."""

    def more(self):
        self.gru = nn.GRU(WIDTH, WIDTH, batch_first=True)

    def between(self, x):
        return super().between(self.gru(x)[0])


class Encoder(OfTokens):
    """torch's own layers, which have a faster path without gradients, and a mask of minus infinities."""

    kinds = (partial(nn.TransformerEncoderLayer, WIDTH, 2, 2 * WIDTH, 0.0, batch_first=True),) * 2

    def more(self):
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.last = nn.LayerNorm(WIDTH)

    def between(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        for block in self.blocks:
            x = block(x, src_mask=mask, is_causal=True)
        return self.last(x + self.attention(x, x, x, need_weights=False)[0])


class WeightNormed(OfTokens):
    def more(self):
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, 24))
        self.back = nn.Linear(24, WIDTH)

    def between(self, x):
        return super().between(self.back(self.normed(x)))


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
        sizes = [3 * IMAGE * IMAGE, 48, 48, 48]
        self.weights = nn.ParameterList(torch.randn(b, a) / a**0.5 for a, b in pairwise(sizes))
        self.shift = nn.Parameter(torch.zeros(48))
        self.middle = nn.Linear(48, 48)
        self.head = nn.Linear(48, CLASSES)

    def forward(self, x):
        x = x.flatten(1)
        for weight in self.weights:
            x = F.relu(F.linear(x, weight) + self.shift)
        return self.head(self.middle(x))


class InARow(nn.Sequential):
    """A root that is a list of layers."""

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

    architecture: ClassVar = dict(
        hidden_size=128,
        num_hidden_layers=18,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=512,
        vocab_size=512,
        rope_theta=500_000,
    )
    usual_length: ClassVar = 64
