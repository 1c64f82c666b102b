"""AdamW over a flat buffer against torch's, with clipping."""

import pytest
import torch
from torch import nn

from probes.engine.adam import ALIGNMENT, FlatAdamW, numbers, update

BETAS, CLIP = (0.9, 0.95), 250.0


def net():
    torch.manual_seed(0)
    return nn.ModuleDict(
        {"a": nn.Linear(5, 7), "b": nn.Linear(7, 3, bias=False), "unused": nn.Linear(2, 2), "norm": nn.LayerNorm(3)}
    )


def groups(model):
    plain = [p for p in model.parameters() if p.ndim > 1]
    rest = [p for p in model.parameters() if p.ndim < 2]
    return [
        {"params": plain, "weight_decay": 0.1},
        {"params": rest[:1], "weight_decay": 0.0},
        {"params": rest[1:], "weight_decay": 0.05, "lr_scale": 0.3},
    ]


def loss(model, step, sometimes=False):
    more = model["unused"](torch.ones(2) * step).square().sum() if sometimes and step % 3 != 1 else 0.0
    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(step))
    return more + 3 * model["norm"](model["b"](torch.tanh(model["a"](x)))).pow(3).sum()


def rates(steps):
    return [1e-2 / (1 + step) for step in range(steps)]


def with_torch(model, steps, state=None, start=0):
    optimizer = torch.optim.AdamW(groups(model), lr=1.0, betas=BETAS)
    if state is not None:
        optimizer.load_state_dict(state)
    norms = []
    for step in range(start, steps):
        for group in optimizer.param_groups:
            group["lr"] = rates(steps)[step] * group.get("lr_scale", 1.0)
        optimizer.zero_grad()
        loss(model, step).backward()
        norms.append(nn.utils.clip_grad_norm_(model.parameters(), CLIP))
        optimizer.step()
    assert max(norms) > CLIP > min(norms)
    return optimizer.state_dict()


def with_flat(model, steps, state=None, start=0, change=update):
    optimizer = FlatAdamW(groups(model), betas=BETAS, clip=CLIP, update=change)
    if state is not None:
        optimizer.load_state_dict(state, start)
    table = numbers(rates(steps), BETAS)
    for step in range(start, steps):
        optimizer.zero_grad()
        loss(model, step).backward()
        optimizer.step(table[step], step + 1)
    return optimizer


def same(one, other, tolerance=2e-6):
    for (name, p), (_, q) in zip(one.named_parameters(), other.named_parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=tolerance, atol=tolerance, msg=name)


def test_many_steps_are_those_of_torch():
    ours, theirs = net(), net()
    optimizer, state = with_flat(ours, 40), with_torch(theirs, 40)
    same(ours, theirs)
    found = optimizer.state_dict(40)
    for index, known in state["state"].items():
        assert known["step"] == found["state"][index]["step"] == 40
        for name in ("exp_avg", "exp_avg_sq"):
            torch.testing.assert_close(found["state"][index][name], known[name], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("first", ["flat", "torch"])
def test_a_state_is_carried_from_one_to_the_other(first):
    whole, cut = net(), net()
    with_torch(whole, 30)
    if first == "flat":
        with_torch(cut, 30, with_flat(cut, 20).state_dict(20), start=20)
    else:
        with_flat(cut, 30, with_torch(cut, 20), start=20)
    same(whole, cut)


def test_a_parameter_without_a_gradient_is_left_alone():
    model = net()
    before = model["unused"].weight.clone()
    with_flat(model, 5)
    assert torch.equal(model["unused"].weight, before)


def test_what_is_saved_is_put_back():
    model = net()
    optimizer = with_flat(model, 5)
    restore = optimizer.save()
    kept = [p.clone() for p in model.parameters()]
    loss(model, 9).backward()
    optimizer.step(numbers(rates(6), BETAS)[5], 6)
    assert any(not torch.equal(p, q) for p, q in zip(model.parameters(), kept, strict=True))
    restore()
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), kept, strict=True))


def test_parameters_begin_at_aligned_places_and_get_their_own_memory_back():
    model = net()
    optimizer = with_flat(model, 1)
    start = optimizer.flat.data_ptr()
    assert all((p.data_ptr() - start) % (4 * ALIGNMENT) == 0 for p in model.parameters())
    values = [p.clone() for p in model.parameters()]
    optimizer.close()
    assert len({p.untyped_storage().data_ptr() for p in model.parameters()}) == len(values)
    assert all(torch.equal(p, q) for p, q in zip(model.parameters(), values, strict=True))


def test_the_compiled_update_is_the_same():
    one, other = net(), net()
    with_flat(one, 10)
    with_flat(other, 10, change=torch.compile(update, backend="aot_eager"))
    same(one, other, 1e-6)


def test_a_parameter_that_has_a_gradient_at_some_steps_only(monkeypatch):
    """As the query of a layer whose batch has no token that attends."""
    plain = loss
    monkeypatch.setitem(globals(), "loss", lambda model, step, sometimes=True: plain(model, step, sometimes))
    ours, theirs = net(), net()
    optimizer, state = with_flat(ours, 30), with_torch(theirs, 30)
    same(ours, theirs)
    found = optimizer.state_dict(30)
    steps = [float(known["step"]) for known in state["state"].values()]
    assert [float(known["step"]) for known in found["state"].values()] == steps
    assert sorted(set(steps)) == [20, 30]
    cut = net()
    with_torch(cut, 30, with_flat(cut, 20).state_dict(20), start=20)
    same(theirs, cut)
