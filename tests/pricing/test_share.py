"""What some GPUs of a bigger instance cost, where nothing is known of the machine that was measured."""

from datetime import date

from builders import instance, price

from fp8bench.pricing.catalog import load
from fp8bench.pricing.choose import PriceQuery, has_no_price, of_listed
from fp8bench.schema.instance import Catalog

TODAY = PriceQuery(date(2026, 11, 22), True)


def listed(key, *prices, gpus=8, provider="a cloud"):
    return instance(key, gpu="B200", gpu_count=gpus, provider=provider, prices=prices)


def stands_in(*instances, gpus=1):
    found = of_listed("B200", gpus, Catalog(instances={one.key: one for one in instances}, gpus={}), TODAY)
    return found and found.instance


def test_one_h100_is_an_eighth_of_p5():
    share = of_listed("H100-SXM5-80GB", 1, load(), TODAY)

    assert (share.instance, share.gpus, share.of, share.price.usd_per_hour) == ("p5", 1, 8, 55.04)


def test_dated_prices_go_before_undated_ones_and_doubtful_ones_last():
    undated, dated = price(as_of=None), price(as_of=date(2026, 1, 1))
    doubtful = dated.model_copy(update={"doubtful": True})

    assert stands_in(listed("a", doubtful), listed("b", undated), listed("c", dated), listed("d", dated)) == "c"
    assert stands_in(listed("a", doubtful), listed("b", undated)) == "b"


def test_an_instance_of_fewer_gpus_of_nobody_or_without_a_price_does_not_stand_in():
    dated = price(as_of=date(2026, 1, 1))

    assert (
        stands_in(listed("small", dated, gpus=1), listed("own", dated, provider=None), listed("none"), gpus=2) is None
    )


def test_only_a_machine_of_which_nothing_is_known_has_no_price():
    bought = price(usd_per_hour=2.0, purchase="spot")

    assert has_no_price(None)
    assert has_no_price(listed("own", provider=None))
    assert not has_no_price(listed("own", bought, provider=None))
    assert not has_no_price(listed("p5e"))
