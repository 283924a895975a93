"""`fp8bench list workloads`: listings, one model, and words that cannot be."""

import json

import pytest
from cli.calling import invoked


def test_the_listing_ends_with_the_families():
    shown = invoked("list", "workloads").stdout
    assert shown.splitlines()[-1].split()[0] == "timm:NAME"
    assert "timm:convnext_base" in shown


def test_names_of_a_family_are_listed_all_or_by_a_pattern():
    everyone = invoked("list", "workloads", "timm").stdout.splitlines()
    some = json.loads(invoked("list", "workloads", "timm:eva02_t*", "--json").stdout)
    assert "timm:convnext_base" in everyone
    assert some == [name for name in everyone if name.startswith("timm:eva02_t")]
    assert some


@pytest.mark.slow
def test_one_model_is_shown_in_every_format():
    words = ("list", "workloads", "timm:vit_tiny_patch16_224", "--image-size", "32", "--classes", "16")
    found = json.loads(invoked(*words, "--format", "json").stdout)
    assert (found["sizes"]["img_size"], found["sizes"]["num_classes"], found["fp8_layers"]) == (32, 16, 48)
    assert "te modes: 12 blocks whole" in invoked(*words).stdout
    assert "| blocks.\\*.attn.qkv" in invoked(*words, "--format", "markdown").stdout.replace("blocks.*", "blocks.\\*")
