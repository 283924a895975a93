"""Finds a model's repeated blocks: a transformer's layers, which are compiled, sharded and checkpointed one by one."""

from collections.abc import Iterator

from torch import nn


def repeated_blocks(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the members of each outermost list of two or more modules of one class (a transformer's layers). If these
    are stages, most of each being a list of blocks (ConvNeXt, Swin), yield those blocks. Of a model that names its
    blocks (`block_names`), because a list could not tell them, yield those that it names.
    """
    named: tuple[str, ...] = getattr(model, "block_names", ())
    if named:
        yield from map(model.get_submodule, named)
        return
    for child in model.children():
        members = list(child.children())
        alike = len(members) > 1 and len({type(member) for member in members}) == 1
        if alike and isinstance(child, nn.Sequential | nn.ModuleList | nn.ModuleDict):
            for member in members:
                inner = list(repeated_blocks(member))
                yield from inner if 2 * _weights(*inner) > _weights(member) else [member]
        else:
            yield from repeated_blocks(child)


def _weights(*modules: nn.Module) -> int:
    return sum(weight.numel() for module in modules for weight in module.parameters())
