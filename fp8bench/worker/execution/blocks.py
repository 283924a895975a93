"""Finds a model's repeated blocks: a transformer's layers, which are compiled, sharded and checkpointed one by one."""

from collections.abc import Iterator

from torch import nn


def repeated_blocks(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the members of each outermost list of two or more modules of one class (a transformer's layers). If these
    are stages, most of each being a list of blocks (ConvNeXt, Swin), yield those blocks. Without such a list, yield the
    only member of a list (a transformer of one layer) if it has layers of its own. Of a module that names its blocks
    (`block_names`), because no list contains them, yield those that it names.
    """
    yield from [*_blocks(model, least=2)] or _blocks(model, least=1)


def _blocks(model: nn.Module, least: int) -> Iterator[nn.Module]:
    named: tuple[str, ...] = getattr(model, "block_names", ())
    if named:
        yield from map(model.get_submodule, named)
        return
    for child in model.children():
        members = list(child.children())
        alike = len(members) >= least and len({type(member) for member in members}) == 1
        composite = least > 1 or any(True for member in members for _ in member.children())
        if alike and composite and isinstance(child, nn.Sequential | nn.ModuleList | nn.ModuleDict):
            for member in members:
                inner = list(_blocks(member, least=2))
                yield from inner if 2 * _weights(*inner) > _weights(member) else [member]
        else:
            yield from _blocks(child, least)


def _weights(*modules: nn.Module) -> int:
    return sum(weight.numel() for module in modules for weight in module.parameters())
