"""The gate's scores, its running statistics, and what each trigger does."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from architectures import Context, parameter_groups
from architectures.amor_gate import Statistics, closeness, normalised_entropy, score_positions
from architectures.amor_router import Router
from architectures.amor_spec import TRIGGERS, resolve_trigger
from architectures.amor_trigger import RandomTrigger, make_trigger

DEFAULT = {"kappa": 0.2, "momentum": 0.99, "mu_init": 0.3, "sigma_init": 0.1}


@given(st.lists(st.floats(-50, 50), min_size=2, max_size=9))
def test_entropy_is_the_sum_over_the_vocabulary(logits):
    weights = [math.exp(value - max(logits)) for value in logits]
    p = [weight / sum(weights) for weight in weights]
    expected = -sum(q * math.log(q) for q in p if q > 0) / math.log(len(p))
    found = normalised_entropy(torch.tensor(logits, dtype=torch.float64))
    assert found.dtype == torch.float32
    assert float(found) == pytest.approx(expected, abs=1e-6)
    first, second = sorted(p)[:-3:-1]
    assert float(closeness(torch.tensor(logits))) == pytest.approx(1 - (first - second), abs=1e-5)


def test_scores_at_their_ends():
    assert float(normalised_entropy(torch.zeros(7))) == pytest.approx(1)
    certain = torch.tensor([0.0, -math.inf, -math.inf])
    assert (float(normalised_entropy(certain)), float(closeness(certain))) == (0, 0)
    assert (float(normalised_entropy(torch.zeros(1))), float(closeness(torch.zeros(1)))) == (0, 0)


def test_scores_in_parts_are_the_scores_and_carry_no_gradient(monkeypatch):
    features, weight = torch.randn(3, 7, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    sizes = []

    def head(x):
        sizes.append(len(x))
        return x @ weight.T

    whole = score_positions(features, head, 5, normalised_entropy)
    monkeypatch.setattr("architectures.amor_gate.LARGEST", 5 * 4)
    parts = score_positions(features, head, 5, normalised_entropy)
    torch.testing.assert_close(whole, parts)
    assert sizes == [21, 4, 4, 4, 4, 4, 1]
    assert not whole.requires_grad


def test_a_heads_own_logits_are_gone_before_the_score():
    import weakref

    heads, alive = [], []

    def head(x):
        logits = x @ torch.randn(4, 5).bfloat16()
        heads.append(weakref.ref(logits))
        return logits

    def score(logits):
        alive.append(heads[-1]() is not None)
        return normalised_entropy(logits)

    score_positions(torch.randn(2, 3, 4).bfloat16(), head, 5, score)
    assert alive == [False]


def test_statistics_follow_the_papers_order_median_and_deviation():
    gate = Statistics(**DEFAULT).train()
    score = torch.tensor([[0.1, 0.9, 0.4, 0.2]])
    mu = 0.99 * 0.3 + 0.01 * 0.2
    sigma = 0.99 * 0.1 + 0.01 * torch.std(score).item()
    fire = gate(score)
    assert float(gate.mu) == pytest.approx(mu, rel=1e-6)
    assert float(gate.sigma) == pytest.approx(sigma, rel=1e-6)
    assert float(gate.tau) == pytest.approx(mu + 0.2 * sigma, rel=1e-6)
    assert fire.tolist() == [[False, True, True, False]]


def test_comparison_is_strict_and_follows_the_update():
    gate = Statistics(kappa=0.0, momentum=0.5, mu_init=0.0, sigma_init=0.0)
    assert gate.train()(torch.tensor([[0.5, 1.0]])).tolist() == [[True, True]]
    gate.fix(0.5)
    assert gate.eval()(torch.tensor([[0.5, 0.6]])).tolist() == [[False, True]]


def test_evaluation_changes_no_buffer():
    gate = Statistics(**DEFAULT).eval()
    before = {name: value.clone() for name, value in gate.state_dict().items()}
    gate(torch.rand(2, 9))
    assert all(torch.equal(value, before[name]) for name, value in gate.state_dict().items())
    assert set(before) == {"mu", "sigma"}


def test_one_position_keeps_the_old_sigma():
    gate = Statistics(**DEFAULT).train()
    gate(torch.tensor([[0.8]]))
    assert float(gate.sigma) == pytest.approx(0.1)
    assert float(gate.mu) == pytest.approx(0.99 * 0.3 + 0.01 * 0.8)


@pytest.mark.parametrize("value", [0.4, 0.7, 1.0])
def test_equal_entropies_fire_everywhere_from_the_default_start_and_nowhere_from_their_own(value):
    score = torch.full((2, 8), value)
    assert Statistics(**DEFAULT).train()(score).all()
    assert not Statistics(**{**DEFAULT, "mu_init": value}).train()(score).any()


def test_accumulated_micro_batches_move_the_statistics_once_each():
    score = torch.rand(4, 16)
    whole, parts = Statistics(**DEFAULT).train(), Statistics(**DEFAULT).train()
    whole(score)
    for half in score.chunk(2):
        parts(half)
    medians = [half.flatten().sort().values[15] for half in score.chunk(2)]
    expected = 0.99 * (0.99 * 0.3 + 0.01 * medians[0]) + 0.01 * medians[1]
    assert float(parts.mu) == pytest.approx(float(expected), rel=1e-6)
    assert float(parts.mu) != pytest.approx(float(whole.mu), rel=1e-6)


def test_the_buffers_stay_in_float32_and_keep_their_values():
    gate = Statistics(**{**DEFAULT, "mu_init": 0.123456789}).to(torch.bfloat16)
    assert gate.mu.dtype == gate.sigma.dtype == torch.float32
    assert float(gate.mu) == float(torch.tensor(0.123456789))
    assert Statistics(**DEFAULT).to("meta").to_empty(device="cpu").double().mu.dtype == torch.float32


@pytest.mark.parametrize(("d_model", "parameters"), [(768, 1_185_027), (1024, 1_579_011), (2048, 3_154_947)])
def test_three_routers_have_the_papers_parameters(d_model, parameters):
    """Appendix G: 1.19M, 1.58M and 3.15M."""
    with torch.device("meta"):
        router = Router(d_model, 512)
    assert 3 * sum(p.numel() for p in router.parameters()) == parameters


def test_the_router_is_its_formula_in_float32():
    router, x = Router(6, 4), torch.randn(2, 3, 6)
    hidden = torch.nn.functional.silu(x @ router.hidden.weight.T + router.hidden.bias)
    expected = hidden @ router.out.weight[0] + x @ router.skip.weight[0] + router.skip.bias
    torch.testing.assert_close(router(x), expected)
    assert router.to(torch.bfloat16)(x.to(torch.bfloat16)).dtype == torch.float32


def fires(trigger, features, *, control=None, start=0):
    head = torch.nn.Linear(features.shape[-1], 11, bias=False)
    return trigger(features, Context(control=control or {}, head=head), start).fire


@pytest.mark.parametrize("kind", TRIGGERS)
def test_every_trigger_decides_token_by_token_as_at_once(kind):
    torch.manual_seed(1)
    control = {"surprise": torch.rand(3, 12)}
    trigger = make_trigger(resolve_trigger(kind, 8), 8, 11, 1).eval()
    if hasattr(trigger, "statistics"):
        trigger.statistics.fix(0.5 if kind != "entropy" else 0.97)
    head = torch.nn.Linear(8, 11, bias=False)
    features = torch.randn(3, 12, 8)
    whole = trigger(features, Context(control=control, head=head), 0).fire
    parts = [
        trigger(features[:, t : t + 1], Context(control={"surprise": control["surprise"][:, t : t + 1]}, head=head), t)
        for t in range(12)
    ]
    assert torch.equal(whole, torch.cat([part.fire for part in parts], dim=1))
    assert whole.shape == (3, 12)
    assert whole.dtype == torch.bool


def test_positions():
    trigger = make_trigger(resolve_trigger({"kind": "position", "every": 3, "offset": 1}, 8), 8, 11, 0)
    assert fires(trigger, torch.randn(1, 7, 8))[0].nonzero()[:, 0].tolist() == [1, 4]
    assert fires(trigger, torch.randn(1, 7, 8), start=1)[0].nonzero()[:, 0].tolist() == [0, 3, 6]


def test_random_draws_have_their_rate_and_differ_where_they_should():
    features = torch.zeros(64, 256, 8)
    made = [RandomTrigger(8, 11, number, rate=0.4, seed=seed) for number, seed in ((0, 0), (1, 0), (0, 1))]
    drawn = [fires(trigger.eval(), features) for trigger in made]
    for fire in drawn:
        assert float(fire.float().mean()) == pytest.approx(0.4, abs=0.01)
        assert float(fire.float().mean(0).std()) == pytest.approx(math.sqrt(0.24 / 64), rel=0.2)
        assert float(fire.float().mean(1).std()) == pytest.approx(math.sqrt(0.24 / 256), rel=0.4)
        neighbours = (fire[:, 1:] & fire[:, :-1]).float().mean()
        assert float(neighbours) == pytest.approx(0.16, abs=0.01)
    for first, second in ((0, 1), (0, 2), (1, 2)):
        assert float((drawn[first] & drawn[second]).float().mean()) == pytest.approx(0.16, abs=0.01)
    trigger = made[0]
    assert torch.equal(fires(trigger.eval(), features), drawn[0])
    one, two = fires(trigger.train(), features), fires(trigger.train(), features)
    assert float((one & two).float().mean()) == pytest.approx(0.16, abs=0.01)
    assert torch.equal(fires(trigger.eval(), features), drawn[0])


def test_control_is_compared_with_its_statistics_or_with_zero():
    features, value = torch.zeros(1, 4, 8), torch.tensor([[-1.0, 0.0, 0.31, 2.0]])
    statistics = make_trigger(resolve_trigger({"kind": "control", "name": "s"}, 8), 8, 11, 0).eval()
    assert fires(statistics, features, control={"s": value}).tolist() == [[False, False, False, True]]
    positive = make_trigger(resolve_trigger({"kind": "control", "name": "s", "compare": "positive"}, 8), 8, 11, 0)
    assert fires(positive, features, control={"s": value}).tolist() == [[False, False, True, True]]
    with pytest.raises(ValueError, match="reads 's', which was not given"):
        fires(positive, features, control={"t": value})
    with pytest.raises(ValueError, match=r"shape \(1, 3\), not \(1, 4\)"):
        fires(positive, features, control={"s": value[:, 1:]})


def test_the_input_trigger_learns_where_it_fires_alone():
    trigger = make_trigger(resolve_trigger({"kind": "input", "hidden": 5}, 8), 8, 11, 0).eval()
    features = torch.randn(2, 9, 8, requires_grad=True)
    trigger.statistics.fix(trigger.score(features, Context()).median())
    gate = trigger(features, Context(), 0)
    assert gate.fire.sum() == 9
    torch.testing.assert_close(gate.weight, torch.sigmoid(gate.score))
    (gate.weight * gate.fire).sum().backward()
    assert all(p.grad.abs().sum() > 0 for p in trigger.parameters())
    assert torch.equal(features.grad.abs().sum(-1) > 0, gate.fire)


@pytest.mark.parametrize("kind", ["router", "random_router"])
def test_an_undistilled_router_is_left_as_it_is(kind):
    trigger = make_trigger(resolve_trigger(kind, 8), 8, 11, 0)
    features = torch.randn(2, 9, 8, requires_grad=True)
    gate = trigger(features, Context(), 0)
    assert gate.weight is None
    assert not gate.fire.requires_grad
    torch.autograd.backward(gate.score.sum())
    assert features.grad is None
    assert len(parameter_groups(trigger, 0.1)) == 2
