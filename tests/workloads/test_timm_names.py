"""Names of timm's models, found without importing it."""

import pytest

from fp8bench import registry
from fp8bench.schema.errors import UsageError
from fp8bench.workloads.timm_names import model_names


@pytest.mark.parametrize(
    ("name", "what", "remedy"),
    [
        ("timm:convnxt_base", "unknown workload 'timm:convnxt_base'", "Did you mean 'timm:convnext_base'?"),
        ("timm:", "unknown workload 'timm:'", "See every one with `fp8bench list workloads timm`"),
        ("convnext_base", "unknown workload 'convnext_base'", "Did you mean 'timm:convnext_base'?"),
        ("timm:vit_base_patch16_224.augreg_in21k", "names pretrained weights", "Use timm:vit_base_patch16_224"),
        ("tim:convnext_base", "unknown workload 'tim:convnext_base'", "`fp8bench list workloads`"),
    ],
)
def test_a_name_that_does_not_exist_is_refused_with_the_nearest(name, what, remedy):
    with pytest.raises(UsageError) as refused:
        registry.find_workload(name)
    assert what in refused.value.what
    assert remedy in refused.value.remedy


@pytest.mark.slow
def test_the_names_are_those_that_timm_itself_gives():
    import timm

    assert set(model_names()) == set(timm.list_models())
    entry = registry.find_workload("timm:convnext_base")
    assert set(entry.usual) == {"optimizer", "data", "weight_dtype", "image_size", "classes"}
