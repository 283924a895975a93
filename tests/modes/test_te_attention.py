"""What Transformer Engine says about its choice of attention is kept, and not printed; a stand-in says it here."""

import logging
import sys
import types

import pytest

from fp8bench.modes.te_block import LOGGER, AttentionLog, listen

PACKAGE = "transformer_engine.pytorch.attention.dot_product_attention"
SAID = [
    "Running with config={'transformer_engine_version': '2.20.2', 'flash_attn_version': '2.8.3', "
    "'flash_attn_3_version': 'not installed', 'device_compute_capability': 'sm90'}",
    "Disabling FlashAttention 3 due to: not installed",
    "Available backends = {FlashAttention=True (2.8.3), FusedAttention=True (sub-backend 1), UnfusedDotProduct=True}",
    "Selected backend = FusedAttention (sub-backend 1)",
]


@pytest.fixture
def choose(monkeypatch):
    """Chooses as the real one does at the first forward pass of a shape: it sets its logger's level, and tells why."""
    utils = types.ModuleType(f"{PACKAGE}.utils")
    utils.AttentionLogging = types.SimpleNamespace(_log_level=logging.WARNING)
    names = PACKAGE.split(".")
    for end in range(1, len(names) + 1):
        monkeypatch.setitem(sys.modules, ".".join(names[:end]), types.ModuleType(".".join(names[:end])))
    sys.modules[PACKAGE].utils = utils
    monkeypatch.setitem(sys.modules, f"{PACKAGE}.utils", utils)
    logger = logging.getLogger(LOGGER)
    before = logger.level, logger.propagate

    def choosing():
        logger.setLevel(utils.AttentionLogging._log_level)
        for line in SAID:
            logger.debug(line)
        logger.info("Attention runs")

    yield choosing
    logger.level, logger.propagate = before
    logger.handlers = [handler for handler in logger.handlers if not isinstance(handler, AttentionLog)]


def test_what_tells_about_the_choice_is_kept_once_and_not_printed_and_other_loggers_are_heard(
    choose, capsys, monkeypatch
):
    heard, handler = [], logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    log = listen()
    assert log.evidence() == {}
    assert listen() is log
    for _shape_that_is_chosen_alike in range(2):
        choose()
    assert log.evidence() == {"attention_choice": SAID[1:]}
    logging.getLogger("another").warning("something")
    assert (capsys.readouterr().err, heard) == ("", ["something"])
    monkeypatch.setitem(sys.modules, PACKAGE, None)
    assert listen() is None, "of a version without that logger"
