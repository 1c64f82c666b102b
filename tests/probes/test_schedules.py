"""Schedules of the mode: what each one says, on whom it depends, and how settings reach it."""

from __future__ import annotations

import math

import pytest
import torch

from architectures.spec import resolve
from probes.controls import SCHEDULES, make_control, with_defaults
from probes.schedules import entropy
from probes.task import IGNORED, Batch
from probes.tasks.two_timescale import TwoTimescale

TASK = TwoTimescale(regimes=3, vocab=5, length=40, burn_in=8, switch_rate=0.05)
BATCH = TASK.sample(torch.Generator().manual_seed(0), 6)


def mode(schedule, batch=BATCH, seed=0, model=None, **parameters):
    generator = torch.Generator().manual_seed(seed)
    return make_control({"mode": {"schedule": schedule, **parameters}}, batch, TASK, generator, model)["mode"]


def uniform(tokens, *, control):
    """A model that in linear mode is certain after token 0 and knows nothing after the others."""
    assert (control["mode"] == 1).all()
    sharp = torch.zeros(5).index_fill(0, torch.tensor(2), 50.0)

    class Output:
        logits = torch.where((tokens == 0)[..., None], sharp, torch.zeros(5))

    return Output


EXAMPLES = {
    "attention": {},
    "linear": {},
    "random_chunks": {"chunk": 7},
    "per_sequence": {},
    "switch": {"at": [3, 0.5]},
    "prompt": {},
    "periodic": {},
    "reference": {"threshold": 0.9},
    "model_entropy": {"threshold": 0.5, "model": uniform},
}


@pytest.mark.parametrize("schedule", EXAMPLES)
def test_every_schedule_gives_modes_from_its_generator_alone(schedule):
    parameters = EXAMPLES[schedule]
    first, again = mode(schedule, **parameters), mode(schedule, **parameters)
    assert first.dtype == torch.int64
    assert first.shape == BATCH.tokens.shape
    assert set(first.unique().tolist()) <= {0, 1}
    assert torch.equal(first, again)


@pytest.mark.parametrize("schedule", EXAMPLES)
def test_no_schedule_reads_a_target(schedule):
    """Other targets at the same scored positions change nothing."""
    other = torch.where(BATCH.targets == IGNORED, BATCH.targets, (BATCH.targets + 1) % 5)
    changed = Batch(BATCH.tokens, other, BATCH.latents, BATCH.slices)
    assert torch.equal(mode(schedule, **EXAMPLES[schedule]), mode(schedule, changed, **EXAMPLES[schedule]))


def test_no_schedule_of_the_mode_is_left_out():
    assert {name for name, target in SCHEDULES.items() if target.startswith("probes.schedules:")} == set(EXAMPLES)


def test_single_modes():
    assert (mode("attention") == 0).all()
    assert (mode("linear") == 1).all()


def test_random_chunks_are_constant_inside_and_drawn_at_the_ratio():
    tokens = torch.zeros(400, 1000, dtype=torch.int64)
    drawn = mode("random_chunks", Batch(tokens, tokens), chunk=128, attention=0.25)
    chunks = [drawn[:, start : start + 128] for start in range(0, 1000, 128)]
    assert all((chunk == chunk[:, :1]).all() for chunk in chunks)
    share = torch.stack([chunk[:, 0] for chunk in chunks]).eq(0).double()
    assert abs(share.mean() - 0.25) < 4 * math.sqrt(0.25 * 0.75 / share.numel())
    first, second = share[0], share[1]
    assert abs(((first - 0.25) * (second - 0.25)).mean()) < 4 * 0.1875 / math.sqrt(400)
    assert not torch.equal(drawn, mode("random_chunks", Batch(tokens, tokens), seed=1))


@pytest.mark.parametrize(("length", "chunk"), [(2048, 128), (512, 128), (100, 25), (6, 2), (1, 1)])
def test_default_chunks_are_the_papers_or_a_quarter(length, chunk):
    tokens = torch.zeros(64, length, dtype=torch.int64)
    batch = Batch(tokens, tokens)
    assert torch.equal(mode("random_chunks", batch), mode("random_chunks", batch, chunk=chunk))


def test_per_sequence_is_constant_along_the_sequence():
    tokens = torch.zeros(400, 30, dtype=torch.int64)
    drawn = mode("per_sequence", Batch(tokens, tokens), attention=0.6)
    assert (drawn == drawn[:, :1]).all()
    assert abs(drawn[:, 0].eq(0).double().mean() - 0.6) < 4 * math.sqrt(0.24 / 400)


def test_switch_changes_at_each_position():
    row = mode("switch", at=[5, 0.5, 30], first="linear")[3]
    assert row.tolist() == [1] * 5 + [0] * 15 + [1] * 10 + [0] * 10
    assert (mode("switch", at=0.0, first="linear") == 0).all()
    assert mode("switch", at=0.975, first="linear")[0].eq(0).sum() == 1


def test_prompt_begins_at_each_sequences_own_query():
    tokens = torch.zeros(3, 6, dtype=torch.int64)
    targets = torch.full((3, 6), IGNORED)
    targets[0, 3] = 1
    targets[1, 1] = targets[1, 4] = 1
    batch = Batch(tokens, targets)
    assert mode("prompt", batch).tolist() == [[1] * 3 + [0] * 3, [1] + [0] * 5, [1] * 6]
    swapped = mode("prompt", batch, context="attention", prompt="linear")
    assert torch.equal(swapped, 1 - mode("prompt", batch))
    answered = Batch(
        tokens, targets, {"answers": torch.zeros(3, 6, dtype=torch.bool).index_fill(1, torch.tensor(5), True)}
    )
    assert mode("prompt", answered).tolist() == [[1] * 5 + [0]] * 3
    assert mode("prompt", batch, start=2)[0].tolist() == [1, 1, 0, 0, 0, 0]
    assert mode("prompt", batch, start=0.5)[2].tolist() == [1, 1, 1, 0, 0, 0]


def test_periodic():
    assert mode("periodic", period=4, attention=1, offset=2)[0, :8].tolist() == [1, 1, 0, 1, 1, 1, 0, 1]
    assert (mode("periodic", period=3, attention=3) == 0).all()


def test_reference_attends_where_the_filter_is_uncertain():
    log_p = TASK.references()["bayes"].log_predictive(BATCH)
    expected = torch.ones_like(BATCH.tokens)
    expected[BATCH.scored] = (-(log_p.exp() * log_p).sum(-1) <= 1.2).long()
    found = mode("reference", threshold=1.2)
    assert 0 < found[BATCH.scored].double().mean() < 1
    assert torch.equal(found, expected)
    assert (mode("reference", threshold=1.2, elsewhere="attention")[~BATCH.scored] == 0).all()
    share = mode("reference", fraction=0.25)[BATCH.scored].eq(0).double().mean()
    assert abs(share - 0.25) < 1 / BATCH.scored.sum()


def test_reference_is_causal():
    """The mode up to t is unchanged by later tokens."""
    tokens = BATCH.tokens.clone()
    tokens[:, 20:] = (tokens[:, 20:] + 1) % 5
    later = Batch(tokens, BATCH.targets, BATCH.latents, BATCH.slices)
    before, after = mode("reference", threshold=1.2), mode("reference", later, threshold=1.2)
    assert torch.equal(before[:, :20], after[:, :20])
    assert not torch.equal(before, after)


def test_model_entropy_attends_where_the_linear_pass_is_uncertain():
    assert torch.equal(mode("model_entropy", model=uniform, threshold=0.5), (BATCH.tokens == 0).long())


def test_entropy_of_impossible_and_even():
    log_p = torch.tensor([[0.0, -torch.inf], [math.log(0.5)] * 2])
    assert torch.allclose(entropy(log_p), torch.tensor([0.0, math.log(2)]))


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"schedule": "randm_chunks"}, "control.mode.schedule: unknown 'randm_chunks'; nearest is 'random_chunks'"),
        ({}, "control.mode.schedule: unknown ''"),
        (
            {"schedule": "random_chunks", "chunck": 3},
            "control.mode.chunck: random_chunks has no such parameter; nearest is 'chunk'",
        ),
        ({"schedule": "random_chunks", "attention": 1.5}, "control.mode.attention: 1.5 is no fraction; nearest: 1"),
        ({"schedule": "random_chunks", "chunk": 0}, "control.mode.chunk: 0 is below 1; nearest: 1"),
        (
            {"schedule": "switch", "first": "atention"},
            "control.mode.first: unknown mode 'atention'; nearest is 'attention'",
        ),
        ({"schedule": "switch", "at": 41}, "control.mode.at: 41 is no position of 40; nearest: 40"),
        ({"schedule": "prompt", "start": "end"}, "control.mode.start: unknown 'end'"),
        ({"schedule": "periodic", "attention": 9}, "control.mode.attention: 9 tokens of a period of 4; nearest: 4"),
        ({"schedule": "reference"}, "control.mode.threshold, fraction: give one of the two"),
        (
            {"schedule": "reference", "name": "baye", "threshold": 1},
            "control.mode.name: unknown reference 'baye'; nearest is 'bayes'",
        ),
        ({"schedule": "model_entropy", "threshold": 1}, "control.mode.schedule: model_entropy needs the model"),
        ("linear", "control.mode: 'linear' is no mapping with a schedule"),
    ],
)
def test_bad_controls_are_one_line(entry, message):
    with pytest.raises(ValueError) as caught:
        make_control({"mode": entry}, BATCH, TASK, torch.Generator())
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


class TestDefaults:
    """What an Oryx spec brings along, under what the user sets."""

    spec = resolve({"kind": "oryx", "vocab_size": 5})

    def test_without_settings(self):
        train, evaluate = with_defaults(self.spec, {}, {})
        assert train["control"]["mode"] == {"schedule": "random_chunks", "attention": 0.25}
        assert evaluate["control"] == train["control"]
        assert list(evaluate["variants"]) == ["attention", "linear", "mixed"]

    def test_parameters_are_laid_over_and_followed(self):
        train, evaluate = with_defaults(self.spec, {"control": {"mode": {"chunk": 16}}, "steps": 5}, {})
        assert train == {"control": {"mode": {"schedule": "random_chunks", "attention": 0.25, "chunk": 16}}, "steps": 5}
        assert evaluate["control"]["mode"]["chunk"] == 16
        assert evaluate["variants"]["mixed"]["mode"]["chunk"] == 16

    def test_another_schedule_replaces(self):
        given = {"control": {"mode": {"schedule": "per_sequence"}}}
        scored = {"control": {"mode": {"chunk": 32}}, "variants": {"late": {"mode": {"schedule": "switch"}}}}
        train, evaluate = with_defaults(self.spec, given, scored)
        assert train["control"] == {"mode": {"schedule": "per_sequence"}}
        assert evaluate["control"]["mode"] == {"schedule": "random_chunks", "attention": 0.25, "chunk": 32}
        assert evaluate["variants"]["mixed"] == evaluate["control"]
        assert list(evaluate["variants"]) == ["attention", "linear", "mixed", "late"]

    def test_a_layer_of_its_own_is_added(self):
        train, _ = with_defaults(self.spec, {"control": {"mode_1": {"schedule": "linear"}}}, {})
        assert set(train["control"]) == {"mode", "mode_1"}

    def test_a_stack_has_none(self):
        stack = {"kind": "stack", "layers": ["attention"]}
        assert with_defaults(stack, {"lr": 1}, {"test_sequences": 2}) == ({"lr": 1}, {"test_sequences": 2})
