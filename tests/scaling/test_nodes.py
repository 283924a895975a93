"""A step on several nodes: what the ring sends, what of it stays hidden, and what the slowest link makes of it."""

from dataclasses import replace

import pytest

from fp8bench.predict.nodes import Links, OneNode, project, ring_s

NODE = OneNode(step_s=1.0, gpus=8, gradient_bytes=40e9)
FAST = Links(bus_gb_s=400.0, node_gb_s=1000.0)
SLOW_NETWORK = Links(bus_gb_s=400.0, node_gb_s=100.0)


def test_a_ring_sends_twice_the_bytes_less_one_ranks_share():
    assert ring_s(NODE, FAST, 1) == pytest.approx(2 * 7 / 8 * 40 / 400)
    assert ring_s(NODE, FAST, 4) == pytest.approx(2 * 31 / 32 * 40 / 400)


def test_the_slowest_link_decides():
    assert ring_s(NODE, SLOW_NETWORK, 2) == pytest.approx(2 * 15 / 16 * 40 / 100)
    assert ring_s(NODE, SLOW_NETWORK, 1) == pytest.approx(2 * 7 / 8 * 40 / 400)


def test_one_gpu_a_node_has_the_network_alone():
    alone = OneNode(step_s=1.0, gpus=1, gradient_bytes=40e9)
    links = Links(bus_gb_s=None, node_gb_s=100.0)
    assert ring_s(alone, links, 1) == 0.0
    assert ring_s(alone, links, 2) == pytest.approx(0.4)


def test_latency_grows_with_the_hops():
    late = replace(FAST, latency_s=7e-3, latency_ranks=8)
    assert ring_s(NODE, late, 1) - ring_s(NODE, FAST, 1) == pytest.approx(7e-3)
    assert ring_s(NODE, late, 4) - ring_s(NODE, FAST, 4) == pytest.approx(31e-3)


def test_what_one_node_hid_stays_hidden():
    node = replace(NODE, nccl_s=0.2, exposed_s=0.05)
    assert node.hidden == pytest.approx(0.75)
    step = project(node, SLOW_NETWORK, 2)
    all_s = 0.2 * ring_s(node, SLOW_NETWORK, 2) / ring_s(node, SLOW_NETWORK, 1)
    assert step.ring_s == pytest.approx(all_s)
    # Nearly a second of work hides three quarters of it.
    assert step.least_s == step.most_s == pytest.approx(0.95 + 0.25 * all_s)


def test_no_more_is_hidden_than_there_is_work():
    node = replace(NODE, nccl_s=0.5, exposed_s=0.0)
    step = project(node, Links(bus_gb_s=400.0, node_gb_s=10.0), 2)
    assert step.most_s == pytest.approx(step.ring_s)
    assert step.most_s > node.step_s


def test_without_a_profile_it_is_a_range_from_all_hidden_to_nothing():
    step = project(NODE, SLOW_NETWORK, 2)
    assert step.least_s == NODE.step_s
    assert step.most_s == pytest.approx(1.0 + 0.75 - 0.175)
    hopeless = project(NODE, Links(bus_gb_s=400.0, node_gb_s=10.0), 2)
    assert hopeless.least_s == pytest.approx(hopeless.ring_s)
    assert hopeless.least_s <= hopeless.most_s


def test_one_node_is_projected_to_itself():
    for node in (NODE, replace(NODE, nccl_s=0.2, exposed_s=0.05)):
        step = project(node, FAST, 1)
        assert (step.least_s, step.most_s) == (pytest.approx(1.0), pytest.approx(1.0))


def test_several_gpus_need_their_link():
    with pytest.raises(ValueError, match="links between a node's GPUs"):
        project(NODE, Links(bus_gb_s=None, node_gb_s=100.0), 2)
