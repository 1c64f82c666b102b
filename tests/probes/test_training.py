"""Training: the schedule, the stream, and going on from a checkpoint to the same bits."""

import math

import pytest
import torch

from architectures import build, resolve
from probes.config import Training
from probes.splits import TrainingStream
from probes.tasks import create
from probes.training import Diverged, Trainer, evaluation_steps, learning_rate, training_targets

TASK = {"regimes": 2, "vocab": 4, "overlap": 1.0, "switch_rate": 0.1, "length": 12, "burn_in": 2, "windows": [1]}
RECIPE = {"steps": 12, "batch_size": 8, "warmup": 3, "evaluations": 3}


@pytest.fixture(scope="module")
def task():
    return create("two_timescale", TASK)


def trainer(task, **recipe):
    torch.manual_seed(0)
    model = build(resolve({"layers": "[gdn, attention]", "d_model": 16, "d_ff": 16, "vocab_size": 4}))
    return Trainer(model, task, Training(**{**RECIPE, **recipe}), data_seed=0)


@pytest.mark.parametrize("stop", range(7))
def test_batches_drawn_together_go_on_after_any_of_them(stop):
    task = create("two_timescale", {"length": 8, "burn_in": 2})
    whole = TrainingStream(task, 0, 2, ahead=3)
    batches = [whole.next().tokens for _ in range(8)]
    cut = TrainingStream(task, 0, 2, ahead=3)
    for _ in range(stop):
        cut.next()
    later = TrainingStream(task, 0, 2, ahead=3)
    later.restore(cut.state())
    for batch in batches[stop:]:
        assert torch.equal(later.next().tokens, batch)
    assert len({tuple(batch.flatten().tolist()) for batch in batches}) == 8


def test_batches_are_taken_as_far_as_they_were_drawn_together():
    task = create("two_timescale", {"length": 8, "burn_in": 2})
    one, many = (TrainingStream(task, 0, 2, ahead=3) for _ in range(2))
    many.next()
    both = many.take(5)
    assert len(both) == 4
    one.next()
    assert torch.equal(both.tokens, torch.cat([one.next().tokens, one.next().tokens]))
    states = [many.state(1), many.state()]
    for state, expected in zip(states, [both.tokens[2:], one.next().tokens], strict=True):
        one.restore(state)
        assert torch.equal(one.next().tokens, expected)


def test_the_learning_rate_warms_up_and_decays():
    train = Training(steps=100, warmup=10, lr=2.0, final_lr=0.1)
    rates = [learning_rate(step, train) for step in range(100)]
    assert rates[0] == pytest.approx(0.2)
    assert rates[9] == rates[10] == pytest.approx(2.0)
    assert rates[55] == pytest.approx(2.0 * (0.1 + 0.9 * 0.5))
    assert rates[99] == pytest.approx(2.0 * (0.1 + 0.9 * (1 + math.cos(math.pi * 89 / 90)) / 2))
    assert rates[9:] == sorted(rates[9:], reverse=True)


def test_no_warm_up_starts_at_the_peak():
    assert learning_rate(0, Training(steps=10, warmup=0, lr=1.0)) == 1.0


@pytest.mark.parametrize(("steps", "evaluations"), [(10, 3), (3, 10), (1, 1), (7, 7)])
def test_the_last_step_is_evaluated(steps, evaluations):
    points = evaluation_steps(Training(steps=steps, evaluations=evaluations))
    assert points[-1] == steps
    assert len(points) == min(steps, evaluations)
    assert points == sorted(set(points))


def test_two_runs_are_the_same_to_the_bit(task):
    first, second = trainer(task), trainer(task)
    assert first.advance(12) == second.advance(12)
    for one, other in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("recipe", [{}, {"examples": 20}, {"supervision": "all"}])
def test_a_restored_run_goes_on_to_the_same_bits(task, tmp_path, recipe):
    whole, part = trainer(task, **recipe), trainer(task, **recipe)
    whole.advance(5)
    whole.advance(12)
    part.advance(5)
    torch.save(part.state(), tmp_path / "state.pt")
    torch.manual_seed(99)
    other = trainer(task, **recipe)
    other.stream.next()
    other.restore(torch.load(tmp_path / "state.pt", weights_only=True))
    other.advance(12)
    for one, two in zip(whole.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(one, two)


def test_training_lowers_the_loss(task):
    run = trainer(task, steps=150, lr=1e-2)
    first, last = run.advance(10).loss, run.advance(150).loss
    assert last < first - 0.05


def test_a_loss_that_is_not_finite_stops_the_run(task):
    run = trainer(task, lr=1e20, warmup=0)
    with pytest.raises(Diverged, match="training loss is"):
        run.advance(12)


def test_supervision_of_every_token_adds_the_unscored_positions(task):
    batch = task.sample(torch.Generator().manual_seed(0), 3)
    scored, every = training_targets(batch, "scored"), training_targets(batch, "all")
    assert (scored >= 0).sum() == 3 * 10
    assert (every >= 0).sum() == 3 * 12
    assert torch.equal(every[:, :-1], batch.tokens[:, 1:])


def test_a_finite_set_is_shown_in_whole_passes(task):
    stream = TrainingStream(task, 0, 8, examples=20)
    pool = {tuple(row) for row in stream.pool.tokens.tolist()}
    drawn = [tuple(row) for _ in range(5) for row in stream.next().tokens.tolist()]
    assert set(drawn[:20]) <= pool
    assert sorted(drawn[:20]) == sorted(drawn[20:])
    assert drawn[:20] != drawn[20:]


def test_the_stream_does_not_depend_on_the_model_seed_and_does_on_the_data_seed(task):
    first = TrainingStream(task, 0, 8).next().tokens
    torch.manual_seed(5)
    assert torch.equal(first, TrainingStream(task, 0, 8).next().tokens)
    assert not torch.equal(first, TrainingStream(task, 1, 8).next().tokens)


def test_norms_biases_and_the_recurrences_own_parameters_do_not_decay(task):
    run = trainer(task)
    decays = {id(p): group["weight_decay"] for group in run.optimizer.param_groups for p in group["params"]}
    named = dict(run.model.named_parameters())
    assert len(decays) == len(named)
    free = {name for name, p in named.items() if decays[id(p)] == 0}
    assert all(name in free for name, p in named.items() if p.ndim < 2)
    assert {name.rsplit(".", 1)[-1] for name in free} >= {"A_log", "dt_bias"}
    assert any(decays[id(p)] == 0.1 for p in named.values())
