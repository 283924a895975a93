"""Random samples: what they are made of, which rank gets which, and that a loader changes none of them."""

from functools import partial
from itertools import islice

import pytest
import torch

from fp8bench.workloads.fake_data import LENGTH, Drawn, draw_image, draw_tokens, indices
from fp8bench.workloads.llama import LLMMicro
from fp8bench.workloads.vit import ViTMicro

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")


def test_images_are_a_million_normal_ones_with_labels_by_index_and_targets_the_tokens_that_follow():
    data = Drawn(partial(draw_image, 32, 10), seed=0)
    image, label = data[123_456]
    assert len(data) == LENGTH == 1_000_000
    assert (image.shape, image.dtype, label) == ((3, 32, 32), torch.float32, 6)
    assert abs(float(image.mean())) < 0.1
    assert float(image.std()) == pytest.approx(1, abs=0.1)
    tokens, targets = Drawn(partial(draw_tokens, 100, 50), seed=0)[7]
    assert torch.equal(tokens[1:], targets[:-1])
    assert (tokens.dtype, int(tokens.min()) >= 0, int(targets.max()) < 50) == (torch.int64, True, True)


@pytest.mark.parametrize("draw", [partial(draw_image, 32, 50), partial(draw_tokens, 32, 50)])
def test_a_sample_depends_on_its_index_and_the_seed_alone(draw):
    first, again, other = (Drawn(draw, seed)[7][0] for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(first, Drawn(draw, 0)[8][0])
    with pytest.raises(IndexError):
        Drawn(draw, 0)[LENGTH]


def test_ranks_never_draw_the_same_sample_in_the_same_pass_and_resident_data_is_one_batch():
    drawn = [index for rank in range(8) for index in islice(indices(4, rank), 12)]
    assert len(set(drawn)) == len(drawn)
    batches = ViTMicro(data="device").batches(4, 0, CPU)
    assert next(batches).inputs is next(batches).inputs


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("workload", "draw"), [(ViTMicro, partial(draw_image, 32, 16)), (LLMMicro, partial(draw_tokens, 64, 256))]
)
def test_a_loader_gives_the_same_batches_whatever_its_processes(workload, draw, workers):
    sample = Drawn(draw, 0)[2]
    batches = workload(data="loader", workers=workers).batches(4, 0, CPU)
    first, second = next(batches), next(batches)
    batches.close()
    assert torch.equal(first.inputs[2], sample[0])
    assert torch.equal(first.targets[2], torch.as_tensor(sample[1]))
    assert not torch.equal(first.inputs, second.inputs)
