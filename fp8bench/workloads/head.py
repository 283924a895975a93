"""The last linear layer of a language model, which can compute the loss without holding all logits at any time.

For 8,192 tokens of a vocabulary of 32,000, the logits alone take 1 GiB in float32, and their softmax and gradient two
more. So tokens are processed in chunks, and each chunk's gradients are computed with its loss, because they are linear
in what the backward pass provides later: a scalar. torch.nn.functional.linear_cross_entropy also uses chunks in torch
2.15, but torch.compile falls back to eager there, and one method for every torch keeps records comparable.
"""

from typing import Any

import torch
from torch import Tensor, nn

LOGITS_AT_ONCE = 2**27
"""The number of logits in a chunk: 512 MiB in float32, of which two and their bf16 forms exist at a time. That is 4,194
tokens of 32,000 words."""


class Head(nn.Linear):
    """Computes logits from the last hidden states, or the mean cross entropy if there are targets."""

    def forward(self, input: Tensor, targets: Tensor | None = None) -> Tensor:
        """input: [..., in_features]. targets: [...] int64 for a float32 scalar, None for logits."""
        if targets is None:
            return super().forward(input)
        hidden, kind = input.flatten(0, -2), input.device.type
        # Not torch.amp.is_autocast_available, which breaks the graph of torch.compile in torch 2.11.
        if kind in ("cpu", "cuda") and torch.is_autocast_enabled(kind):
            hidden = hidden.to(torch.get_autocast_dtype(kind))
        return _chunked_loss(hidden, self.weight, targets.flatten(), torch.is_grad_enabled())


class _ChunkedLoss(torch.autograd.Function):
    """The mean loss with its gradients. GEMMs are in the dtype of `hidden`, sums in float32."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, needs_gradient: bool) -> Tensor:
        rows = max(1, LOGITS_AT_ONCE // weight.shape[0])
        matrix = weight.to(hidden.dtype)
        loss = torch.zeros((), dtype=torch.float32, device=hidden.device)
        of_hidden, of_weight = [], None
        for part, wanted in zip(hidden.split(rows), targets.split(rows), strict=True):
            log_p = torch.log_softmax((part @ matrix.t()).float(), -1)
            index = wanted.unsqueeze(-1)
            loss -= log_p.gather(-1, index).sum()
            if needs_gradient:
                # Write directly in the final dtype: a separate cast would read and write all logits again.
                held = log_p if hidden.dtype == log_p.dtype else torch.empty_like(log_p, dtype=hidden.dtype)
                gradient = torch.exp(log_p, out=held)
                gradient.scatter_add_(-1, index, torch.full_like(index, -1, dtype=hidden.dtype))
                of_hidden.append(gradient @ matrix)
                product = (gradient.t() @ part).float()
                of_weight = product if of_weight is None else of_weight.add_(product)
        if of_weight is not None:
            ctx.save_for_backward(torch.cat(of_hidden), of_weight.to(weight.dtype))
        ctx.tokens = len(hidden)
        mean: Tensor = loss / ctx.tokens
        return mean

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        of_hidden, of_weight = ctx.saved_tensors
        scale = gradients[0] / ctx.tokens
        return of_hidden * scale.to(of_hidden.dtype), of_weight * scale, None, None


def _chunked_loss(hidden: Tensor, weight: Tensor, targets: Tensor, needs_gradient: bool) -> Tensor:
    # One node for torch.compile. By itself it would treat an autograd.Function as a higher-order operator, which DDP's
    # splitting of graphs at buckets may refuse.
    loss: Tensor = _ChunkedLoss.apply(hidden, weight, targets, needs_gradient)
    return loss


torch.compiler.allow_in_graph(_chunked_loss)
