"""Tasks draw and are scored on a GPU as on the CPU."""

from __future__ import annotations

import pytest
import torch

from probes.catalogue import load_catalogue

CATALOGUE = load_catalogue()
SKIPPED = {"mqar_512_64", "mqar_256_16"}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", [name for name in CATALOGUE.tasks if name not in SKIPPED])
def test_sequences_and_references_on_a_gpu(name):
    task = CATALOGUE.make_task(name)
    batch = task.sample(torch.Generator(device="cuda").manual_seed(0), 16)
    assert batch.tokens.is_cuda
    assert batch.targets.is_cuda
    moved = batch.to("cpu")
    for key, reference in task.references().items():
        found = reference.log_prob(batch)
        assert found.is_cuda, key
        torch.testing.assert_close(found.cpu(), reference.log_prob(moved), rtol=1e-9, atol=1e-9, msg=key)
        table = reference.log_predictive(batch)
        if table is not None:
            torch.testing.assert_close(table.cpu(), reference.log_predictive(moved), rtol=1e-9, atol=1e-9, msg=key)
