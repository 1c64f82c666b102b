"""What is decided for a program before it trains."""

import pytest
import torch

from architectures.kernels import canary
from probes.engine import programs


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, as it sets its compiler up
def test_a_step_is_compiled_under_the_tag_of_the_attention_kernels_that_are_on(monkeypatch):
    monkeypatch.setitem(canary._ENABLED, "cudnn", lambda: False)
    with torch.compiler.config.patch(cache_key_tag=""):
        programs.compiled()
        assert "flash" in torch.compiler.config.cache_key_tag
        assert "cudnn" not in torch.compiler.config.cache_key_tag
