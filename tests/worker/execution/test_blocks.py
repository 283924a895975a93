"""Which modules of a model are its repeated blocks."""

import torch
from torch import nn

from fp8bench.worker.execution.blocks import repeated_blocks
from fp8bench.workloads.gpt_layer import GPTLayerMicro


class Block(nn.Module):
    """Small layers in a list beside the large one: they are no blocks."""

    def __init__(self):
        super().__init__()
        self.large, self.small = nn.Linear(64, 64), nn.ModuleList(nn.Linear(4, 4) for _ in range(2))


class Stage(nn.Module):
    def __init__(self, blocks):
        super().__init__()
        self.downsample, self.blocks = nn.Linear(8, 8), nn.Sequential(*(Block() for _ in range(blocks)))


def names(model):
    found = list(repeated_blocks(model))
    return [name for name, module in model.named_modules() if any(module is one for one in found)]


def test_the_members_of_the_outermost_list_of_one_class():
    model = nn.Module()
    model.stem, model.layers = nn.Linear(8, 8), nn.ModuleList([Block(), Block()])
    assert names(model) == ["layers.0", "layers.1"]


def test_of_stages_the_blocks_in_them():
    model = nn.Module()
    model.stages = nn.Sequential(Stage(2), Stage(3))
    assert names(model) == [f"stages.0.blocks.{n}" for n in range(2)] + [f"stages.1.blocks.{n}" for n in range(3)]


def test_a_list_of_one_counts_where_there_is_no_longer_one_and_its_member_is_no_bare_layer():
    model = nn.Module()
    model.layers, model.head = nn.ModuleList([Stage(1)]), nn.Sequential(nn.Linear(8, 8))
    assert names(model.layers[0]) == ["blocks.0.small.0", "blocks.0.small.1"]
    del model.layers[0].blocks[0].small
    assert names(model) == ["layers.0"]
    assert names(nn.Sequential(model.head)) == []


def test_a_model_of_one_block_names_it_and_so_does_what_it_is_part_of():
    model = nn.Module()
    model.net = GPTLayerMicro().build(torch.device("cpu"))
    assert names(model.net) == ["layer"]
    assert names(model) == ["net.layer"]


def test_a_stage_without_a_list_of_blocks_is_one():
    model = nn.Module()
    model.stages = nn.Sequential(Stage(1), Stage(2))
    assert names(model) == ["stages.0", "stages.1.blocks.0", "stages.1.blocks.1"]
