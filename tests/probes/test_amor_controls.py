"""Oracle gates, other triggers for a trained model, and what is recorded of every position."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from architectures import SpecError, build, resolve
from filters import reference
from probes.config import Evaluation, Seeds, Training
from probes.controls import make_control, with_defaults
from probes.fields import LAGS, FieldRecorder, since_switch
from probes.task import Batch
from probes.tasks import create
from probes.trial import Labels, Runner, Runtime, make_trial, read
from probes.triggers import lent, takes_triggers, threshold

SMALL = {"length": 32, "burn_in": 8, "regimes": 3, "vocab": 5, "windows": [1, 4], "switch_rate": 0.1}
SPEC = {"kind": "amor", "vocab_size": 5, "layers": "gdn*1", "d_model": 16}
EXACT = {"s": {"schedule": "exact_surprise"}, "h": {"schedule": "exact_entropy"}}


@pytest.fixture(scope="module")
def task():
    return create("two_timescale", SMALL)


@pytest.fixture(scope="module")
def batch(task):
    return task.sample(torch.Generator().manual_seed(3), 6)


def test_exact_surprise_and_entropy_are_the_reference_filters(task, batch):
    control = make_control(EXACT, batch, task, torch.Generator())
    for row, tokens in enumerate(batch.tokens.numpy()):
        result = reference.forward(task.hmm, tokens)
        assert float(control["s"][row, 0]) == pytest.approx(math.log(5))
        np.testing.assert_allclose(control["s"][row, 1:], -result.log_prob, rtol=1e-5)
        for t in (0, 7, 31):
            prior = result.posterior[t] @ task.hmm.transition
            p = prior @ task.hmm.emission[:, tokens[t]]
            entropy = -sum(q * math.log(q) for q in p if q > 0)
            assert float(control["h"][row, t]) == pytest.approx(entropy, rel=1e-5)


def test_exact_controls_see_no_later_token_and_no_target(task, batch):
    changed = batch.tokens.clone()
    changed[:, 20:] = (changed[:, 20:] + 1) % 5
    other = Batch(changed, torch.full_like(batch.targets, -100), {}, {})
    one, two = (make_control(EXACT, b, task, torch.Generator()) for b in (batch, other))
    for name in EXACT:
        assert torch.equal(one[name][:, :20], two[name][:, :20])
        assert not torch.equal(one[name][:, 20:], two[name][:, 20:])


def test_a_task_without_a_filter_is_refused(batch):
    class Bare:
        name = "bare"

    with pytest.raises(ValueError, match="needs a task with an exact filter, which 'bare' lacks"):
        make_control(EXACT, batch, Bare(), torch.Generator())


def model_and_passes(batch, trigger="entropy", control=None):
    torch.manual_seed(0)
    model = build({**SPEC, "trigger": trigger}).eval()
    for attention in model.attentions:
        torch.nn.init.normal_(attention.out.weight, std=0.5)
    with torch.no_grad():
        scores = model(batch.tokens, control=control).extras["fields"]
    for number, attention in enumerate(model.attentions):
        if f"gate.{number}.score" in scores:
            attention.trigger.statistics.fix(scores[f"gate.{number}.score"].quantile(0.7), 0.001)

    def passes():
        with torch.no_grad():
            yield model(batch.tokens, control=control).extras

    def rates():
        return [float(extras["fields"][f"gate.{k}.fire"].float().mean()) for extras in passes() for k in range(3)]

    return model, passes, rates


@pytest.mark.parametrize("kind", ["margin", "random", "random_router", "input", "control"])
def test_a_lent_trigger_fires_at_the_native_rate_of_each_block(batch, kind):
    model, passes, rates = model_and_passes(batch, control={"surprise": torch.rand(6, 32)})
    native = rates()
    slack = 0.1 if kind == "random" else 0.03  # equal scores fire together
    with lent(model, {"kind": kind, "firing_rate": "native"}, passes):
        assert rates() == pytest.approx(native, abs=slack)
    with lent(model, {"kind": kind, "firing_rate": 0.5}, passes):
        assert rates() == pytest.approx([0.5] * 3, abs=slack)
    assert rates() == native


def test_an_estimate_of_the_entropy_keeps_the_models_threshold_and_kappa_can_be_moved(batch):
    model, passes, rates = model_and_passes(batch)
    native = rates()
    own = [attention.trigger.statistics.mu.clone() for attention in model.attentions]
    with lent(model, "random_router", passes):
        assert [attention.trigger.statistics.mu for attention in model.attentions] == own
    with lent(model, "entropy", passes):
        assert rates() == native
    for kappa, rate in ((-1e4, 1.0), (1e4, 0.0)):
        with lent(model, {"kind": "entropy", "kappa": kappa}, passes):
            assert rates() == [rate] * 3


def test_another_score_gets_the_median_and_deviation_of_the_calibration(batch):
    model, passes, rates = model_and_passes(batch)
    with lent(model, {"kind": "margin", "kappa": 0.0}, passes):
        assert rates() == pytest.approx([0.5] * 3, abs=0.05)
    with lent(model, "never", passes):
        assert rates() == [0.0] * 3
    with lent(model, {"kind": "position", "every": 4}, passes):
        assert rates() == [0.25] * 3


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"kind": "position", "firing_rate": 0.4}, "firing_rate: 'position' has no threshold"),
        ({"kind": "margin", "firing_rate": "natve"}, "neither a rate in \\[0, 1\\] nor 'native'; nearest: 'native'"),
        ({"kind": "random", "firing_rate": 1.4}, "neither a rate"),
        ("entropi", "nearest: 'entropy'"),
    ],
)
def test_impossible_settings_are_one_line(batch, setting, message):
    model, passes, _ = model_and_passes(batch)
    with pytest.raises(SpecError, match=message), lent(model, setting, passes):
        pass


def test_a_threshold_is_exceeded_by_its_share():
    scores = torch.arange(10.0)[torch.randperm(10)]
    for rate in (0.0, 0.1, 0.4, 1.0):
        assert int((scores > threshold(scores, rate)).sum()) == round(10 * rate)


def test_tokens_since_the_regime_changed():
    regimes = np.array([[0, 0, 1, 1, 1, 0], [2, 2, 2, 2, 2, 2]])
    assert since_switch(regimes).tolist() == [[-1, -1, 0, 1, 2, 0], [-1] * 6]
    assert since_switch(np.array([[0] + [1] * (LAGS + 3)])).max() == LAGS - 1


def test_fields_are_means_by_position_label_and_time_since_the_change(batch):
    recorder, fire = FieldRecorder(), torch.rand(6, 32) > 0.5
    for rows in (slice(0, 4), slice(4, 6)):
        recorder.add(batch.rows(rows.start, rows.stop), {"gate.0.fire": fire[rows]})
    curves = recorder.curves()
    np.testing.assert_allclose(curves["field/gate.0.fire/position"], fire.float().mean(0))
    age, scored = since_switch(batch.latents["regimes"].numpy()[:, :32]), batch.scored.numpy()
    for label, count, mean in zip(
        curves["field/since_switch/labels"],
        curves["field/since_switch/count"],
        curves["field/gate.0.fire/since_switch"],
        strict=True,
    ):
        here = (age == label) & scored
        assert count == here.sum()
        assert mean == pytest.approx(fire.numpy()[here].mean())
    octave = batch.slices["octave_since_switch"].numpy()
    here = (octave == 1) & scored
    at = list(curves["field/slice/octave_since_switch/labels"]).index(1)
    assert curves["field/gate.0.fire/slice/octave_since_switch"][at] == pytest.approx(fire.numpy()[here].mean())
    assert np.array_equal(curves["sample/tokens"], batch.tokens[:4])
    assert np.array_equal(curves["sample/field/gate.0.fire"], fire[:4].float())


def test_a_trial_records_gates_variants_and_statistics(tmp_path, task):
    spec = {**SPEC, "blocks": 2}
    variants = {
        "surprise": {"trigger": {"kind": "control", "name": "s"}, "s": {"schedule": "exact_surprise"}},
    }
    scored = {"validation_sequences": 16, "test_sequences": 16, "variants": variants, "readout_positions": 64}
    sets = {"steps": 4, "batch_size": 8, "evaluations": 2, "warmup": 1}
    for name, architecture in (("amor", spec), ("gdn", {"vocab_size": 5, "layers": "gdn", "d_model": 16})):
        resolved = resolve(architecture)
        train, evaluate = with_defaults(resolved, sets, scored)
        trial = make_trial("two_timescale", task, resolved, Training(**train), Evaluation(**evaluate), Seeds())
        labels = Labels("two_timescale", name)
        row = Runner(trial, labels, Runtime(), tmp_path, None).run()
        assert row["status"] == "ok", row["error"]
        if name == "gdn":
            assert not any(key.startswith("variant") for key in row)
            continue
        result = read(tmp_path / "trials" / row["folder"])
        assert takes_triggers(result.model())
        assert row["variant.zeroed.metric.gate.rate"] == 0
        assert row["variant.random.metric.gate.rate"] == pytest.approx(row["metric.gate.rate"], abs=0.15)
        assert 0 < row["variant.surprise.metric.gate.rate"] < 1
        curves = result.curves
        for part in ("rate", "mu", "sigma", "tau", "alpha"):
            assert curves[f"metric/gate.1.{part}"].shape == (2,)
        assert curves["field/gate.1.score/position"].shape == (32,)
        assert curves["sample/field/gate.0.fire"].shape == (4, 32)
        assert row["metric.gate.0.tau"] == pytest.approx(row["metric.gate.0.mu"] + 0.2 * row["metric.gate.0.sigma"])


def test_an_oracle_is_given_its_tensor_in_training_scoring_and_calibration(tmp_path, task):
    spec = resolve({**SPEC, "blocks": 1, "trigger": {"kind": "control", "name": "surprise", "mu_init": 1.4}})
    train, evaluate = with_defaults(spec, {"steps": 2, "batch_size": 8}, {"validation_sequences": 8})
    assert train["control"] == evaluate["control"] == {"surprise": {"schedule": "exact_surprise"}}
    assert list(evaluate["variants"]) == ["zeroed", "random_router", "random", "always"]
    evaluate |= {"test_sequences": 8, "readout_positions": 64}
    trial = make_trial("two_timescale", task, spec, Training(**train), Evaluation(**evaluate), Seeds())
    row = Runner(trial, Labels("two_timescale", "oracle"), Runtime(), tmp_path, None).run()
    assert row["status"] == "ok", row["error"]
    assert 0 < row["metric.gate.rate"] < 1
    assert row["variant.always.metric.gate.rate"] == 1
