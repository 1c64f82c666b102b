"""The engine's pack on a CPU, where nothing is captured: the plain trainer's numbers, and nobody disturbed."""

import json
import math

import numpy as np
import pytest
import torch
from engine_jobs import job, run, task

from architectures import build
from probes.config import Training
from probes.engine.feed import Feed, Refused, compact, room
from probes.engine.fill import Room
from probes.engine.jobs import Engine, arranged
from probes.engine.step import supervised_loss
from probes.splits import TrainingStream
from probes.task import IGNORED
from probes.tasks import create
from probes.training import training_targets
from probes.trial import Runner, Runtime

CPU = torch.device("cpu")


def curves(out, row):
    with np.load(out / "trials" / row["folder"] / "curves.npz") as arrays:
        return {name: arrays[name] for name in arrays.files}


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_a_pack_trains_as_the_trainer_does(tmp_path):
    jobs = [job("attention"), job("gdn", lr=3e-3), job("mamba2", seed=1), job("attention", steps=25, examples=10)]
    rows = run(jobs, tmp_path / "pack")
    for each in jobs:
        alone = Runner(each.trial, each.labels, Runtime(), tmp_path / "alone", None).run()
        row = rows[each.trial.identity()]
        assert (row["status"], row["env.engine"], alone["env.engine"]) == ("ok", "steps", "eager")
        assert row["test_digest"] == alone["test_digest"]
        packed, single = curves(tmp_path / "pack", row), curves(tmp_path / "alone", alone)
        np.testing.assert_array_equal(packed["train_step"], single["train_step"])
        np.testing.assert_allclose(packed["train_loss"], single["train_loss"], rtol=1e-5)
        np.testing.assert_allclose(packed["validation_excess"], single["validation_excess"], rtol=1e-3, atol=1e-5)


def test_gates_start_from_the_same_statistics_in_a_pack(tmp_path):
    """Judging a program runs its model, which moves the statistics of AMOR's gates in training."""
    spec = {"kind": "amor", "layers": "gdn, gdn", "d_model": 16}
    jobs = [job(spec=spec, steps=30), job(spec=spec, steps=30, lr=3e-3)]
    rows = run(jobs, tmp_path / "pack")
    turned = run(jobs[::-1], tmp_path / "turned")
    for each in jobs:
        row = rows[each.trial.identity()]
        assert row["excess"] == turned[each.trial.identity()]["excess"]
        alone = Runner(each.trial, each.labels, Runtime(), tmp_path / "alone", None).run()
        packed, single = curves(tmp_path / "pack", row), curves(tmp_path / "alone", alone)
        np.testing.assert_allclose(packed["train_loss"], single["train_loss"], rtol=1e-5)
        np.testing.assert_allclose(packed["metric/gate.0.mu"], single["metric/gate.0.mu"], rtol=1e-4)
        assert row["excess"] == pytest.approx(alone["excess"], rel=1e-3)


def test_members_with_one_task_and_seed_share_a_feed(tmp_path):
    engine = Engine(tmp_path, Runtime())
    engine.add([job(), job(lr=1e-3), job(seed=1), job("gdn"), job(examples=10)])
    while engine.waiting:
        engine._admit(engine.waiting.popleft())
    feeds = {id(member.feed): member.feed for member in engine.pack.members}
    assert sorted(feed.readers for feed in feeds.values()) == [1, 1, 3]


def test_a_trial_that_turns_non_finite_leaves_the_others_alone(tmp_path):
    alone = run([job()], tmp_path / "alone")
    calm, wild = job(), job(lr=1e30, warmup=0, clip=1e30)
    rows = run([calm, wild], tmp_path / "pack")
    lost = rows[wild.trial.identity()]
    assert lost["status"] == "diverged"
    assert "step" in lost["error"]
    assert rows[calm.trial.identity()]["excess"] == alone[calm.trial.identity()]["excess"]


def test_the_step_of_divergence_is_the_trainers(tmp_path):
    wild = job(lr=1e30, warmup=0, clip=1e30)
    packed = run([wild], tmp_path / "pack")[wild.trial.identity()]
    eager = Runner(wild.trial, wild.labels, Runtime(), tmp_path / "eager", None).run()
    assert packed["error"] == eager["error"]


def test_a_stopped_pack_goes_on_from_its_checkpoints(tmp_path):
    jobs = [job(), job("gdn", lr=3e-3), job(examples=10, lr=3e-3)]
    whole = run(jobs, tmp_path / "whole")
    engine = Engine(tmp_path / "cut", Runtime())
    engine.add(jobs)
    assert engine.turn() == []  # up to the first evaluation
    del engine
    rows = run(jobs, tmp_path / "cut")
    for identity, row in whole.items():
        assert rows[identity]["excess"] == row["excess"]
        before, after = curves(tmp_path / "whole", row), curves(tmp_path / "cut", rows[identity])
        np.testing.assert_array_equal(before["train_loss"], after["train_loss"])


@pytest.mark.parametrize("left", [0, 7, 0.5])
def test_a_checkpoint_that_was_cut_off_is_not_used(tmp_path, left):
    each = job()
    whole = run([each], tmp_path / "whole")[each.trial.identity()]
    engine = Engine(tmp_path / "cut", Runtime())
    engine.add([each])
    engine.turn()
    (checkpoint,) = (tmp_path / "cut").rglob("checkpoint.pt")
    content = checkpoint.read_bytes()
    checkpoint.write_bytes(content[: left if isinstance(left, int) else int(len(content) * left)])
    row = run([each], tmp_path / "cut")[each.trial.identity()]
    assert row["excess"] == whole["excess"]


def test_the_trainer_goes_on_from_an_engines_checkpoint(tmp_path):
    each = job()
    whole = Runner(each.trial, each.labels, Runtime(), tmp_path / "eager", None).run()
    engine = Engine(tmp_path / "cut", Runtime())
    engine.add([each])
    engine.turn()
    row = Runner(each.trial, each.labels, Runtime(), tmp_path / "cut", None).run()
    assert row["excess"] == pytest.approx(whole["excess"], rel=1e-3)


@pytest.mark.parametrize("ahead", [None, 3])
@pytest.mark.parametrize("until", [1, 3])
def test_a_feed_draws_the_batches_of_the_stream(ahead, until):
    made, train = task(), Training(steps=14, batch_size=4)
    feed = Feed(made, train, 3, device=CPU, slots=5, ahead=ahead)
    stream = TrainingStream(made, 3, 4, ahead=ahead)
    for step in range(14):
        feed.draw(min(14, step + until))
        state = stream.state()
        batch = stream.next()
        given = feed.read(feed.slot_of(torch.tensor([step])))
        targets = training_targets(batch, "scored")
        assert torch.equal(given.tokens, batch.tokens)
        assert torch.equal(given.target, targets[targets != IGNORED])
        assert torch.equal(given.at, (targets != IGNORED).flatten().nonzero()[:, 0])
        known = feed.state(step)["stream"]
        assert all(torch.equal(known[name], value) for name, value in state.items())
        assert torch.equal(feed.again(step), batch.tokens)
    feed.check()


@pytest.mark.parametrize("supervision", ["scored", "all"])
def test_targets_stay_where_they_are_where_nearly_all_positions_are_supervised(supervision):
    made = create("two_timescale", {"length": 32, "burn_in": 0})
    train = Training(steps=4, batch_size=3, supervision=supervision)
    feed, stream = Feed(made, train, 3, device=CPU, slots=4), TrainingStream(made, 3, 3)
    model = build({"layers": "[gdn]", "d_model": 8, "vocab_size": made.vocab_size})
    for step in range(4):
        feed.draw(step + 1)
        batch, given = stream.next(), feed.read(feed.slot_of(torch.tensor([step])))
        targets = training_targets(batch, supervision)
        assert given.at is None
        assert torch.equal(given.tokens, batch.tokens)
        assert torch.equal(given.target, targets.flatten())
        index, target, _ = compact(targets[None], int((targets != IGNORED).sum()))
        everywhere, _ = supervised_loss(model, given.tokens, None, given.target, None, None)
        gathered, _ = supervised_loss(model, given.tokens, index[0], target[0], None, None)
        torch.testing.assert_close(everywhere, gathered)
    feed.check()


def test_positions_are_compacted_in_order_and_padded():
    targets = torch.tensor([[[IGNORED, 5, IGNORED], [7, IGNORED, 2]], [[IGNORED, IGNORED, 1], [IGNORED] * 3]])
    index, target, count = compact(targets, 4)
    assert index.tolist() == [[1, 3, 5, 0], [2, 0, 0, 0]]
    assert target.tolist() == [[5, 7, 2, IGNORED], [1, IGNORED, IGNORED, IGNORED]]
    assert count.tolist() == [3, 1]
    index, target, count = compact(targets[:1], 2)
    assert (index.tolist(), target.tolist(), count.tolist()) == ([[1, 3]], [[5, 7]], [3])


def test_a_batch_that_does_not_fit_is_noticed():
    made, train = task(), Training(steps=10, batch_size=4)
    feed = Feed(made, train, 0, device=CPU, slots=4)
    assert feed.size == room(made, train) == 4 * 10
    feed.size = 39
    feed.ring = feed.ring[:, :-2].contiguous()  # as if the count had been underestimated
    feed.draw(1)
    with pytest.raises(Refused, match="40 supervised positions"):
        feed.check()


@pytest.mark.parametrize(
    ("free", "memories", "limit", "fits"),
    [
        (100, [], 4, True),
        (0, [], 4, True),
        (60, [30, 36], 4, True),
        (59, [30, 36], 4, False),
        (100, [1, 1, 1, 1], 4, False),
    ],
)
def test_a_pack_is_filled_by_measured_memory(free, memories, limit, fits):
    assert Room(lambda: (free, 100), limit).has(memories) is fits


def test_the_limit_of_a_pack_does_not_change_its_results(tmp_path):
    jobs = [job(lr=lr) for lr in (1e-2, 3e-3, 1e-3)]
    together = run(jobs, tmp_path / "together")
    narrow = run(jobs, tmp_path / "narrow", limit=1)
    assert {i: row["excess"] for i, row in together.items()} == {i: row["excess"] for i, row in narrow.items()}


def test_jobs_that_read_one_stream_come_together():
    jobs = [job(seed=0), job(seed=1), job(seed=0, lr=1e-3), job(seed=1, lr=1e-3)]
    assert [each.trial.seeds.data_seed for each in arranged(jobs)] == [0, 0, 1, 1]


def test_the_canary_of_a_sweep_is_recorded(tmp_path):
    run([job("gdn, attention", steps=2)], tmp_path)
    text = (tmp_path / "canary-cpu.json").read_text()
    assert "gated_delta" in text
    assert "chunked" in text


def test_the_kernels_recorded_are_those_that_trained(tmp_path, monkeypatch):
    """A kernel refused after a step was captured is out of use when the trial is scored."""
    conclude = Runner.conclude

    def without_the_fast_form(self, model, error=None):
        for module in model.modules():
            if hasattr(module, "kernels"):
                module.kernels = "plain"
        return conclude(self, model, error)

    monkeypatch.setattr(Runner, "conclude", without_the_fast_form)
    (row,) = run([job("gdn", steps=2)], tmp_path).values()
    assert json.loads(row["env.kernels_used"]) == {"gated_delta": "chunked", "short_conv_silu": "chunked"}


def test_what_was_admitted_is_recorded(tmp_path):
    run([job(steps=2), job(steps=2, lr=1e-3)], tmp_path)
    log = json.loads((tmp_path / "engine-cpu.json").read_text())["admitted"]
    assert len(log) == 2
    assert all(entry["canary_seconds"] > 0 and entry["engine"] == "steps" for entry in log)


def test_events_tell_of_progress(tmp_path):
    heard = []
    engine = Engine(tmp_path, Runtime(), heard.append)
    engine.add([job(steps=40)])
    engine.run()
    assert [event.step for event in heard] == [20, 40]
    assert math.isfinite(heard[-1].excess)


def test_a_step_that_read_the_wrong_batch_is_noticed_and_the_trial_run_again(tmp_path, monkeypatch):
    draw = Feed._draw

    def stale(feed):  # three batches of four go by without reaching the ring
        ring = feed.ring.clone()
        draw(feed)
        if (feed.drawn - 1) % 4:
            feed.ring.copy_(ring)

    alone = job()
    right = run([alone], tmp_path / "right")[alone.trial.identity()]
    monkeypatch.setattr(Feed, "_draw", stale)
    found = run([alone], tmp_path / "stale")[alone.trial.identity()]
    assert found["status"] == "ok"
    assert found["env.engine"] == "eager: step 19 was not trained on its own batch"
    assert found["excess"] == pytest.approx(right["excess"], rel=1e-3)


def test_control_tensors_are_drawn_with_their_batches(tmp_path):
    train = {"control": {"mode": {"schedule": "random_chunks", "chunk": 3}}}
    oryx = job(spec={"kind": "oryx", "layers": 1, "d_model": 16}, steps=20, **train)
    row = run([oryx], tmp_path / "pack")[oryx.trial.identity()]
    alone = Runner(oryx.trial, oryx.labels, Runtime(), tmp_path / "alone", None).run()
    assert (row["status"], row["env.engine"]) == ("ok", "steps")
    packed, single = curves(tmp_path / "pack", row), curves(tmp_path / "alone", alone)
    np.testing.assert_allclose(packed["train_loss"], single["train_loss"], rtol=1e-5)


class FakeGraph:
    """Stands in for a captured step; `wrong` makes it another one."""

    def __init__(self, trainer, wrong):
        self.trainer, self.wrong = trainer, wrong

    def replay(self):
        self.trainer.work()
        if self.wrong:
            self.trainer.optimizer.parameters[0].data.mul_(-3)


@pytest.mark.parametrize("wrong", [False, True])
def test_a_graph_must_do_what_its_step_does_before_it_is_used(tmp_path, monkeypatch, wrong):
    def capture(lane, save):
        lane.graph = FakeGraph(lane.work.__self__, wrong)

    monkeypatch.setattr("probes.engine.lane.Lane.capture", capture)
    each = job()
    engine = Engine(tmp_path / "pack", Runtime())
    engine.add([each])
    if wrong:
        runner = engine._runner(each)
        with pytest.raises(Refused, match="differ from those of its steps"):
            engine.pack.admit(each, runner, runner.build())
        assert not engine.pack.members
        return
    plain = Runner(each.trial, each.labels, Runtime(), tmp_path / "alone", None).run()
    rows = {}
    engine.run(lambda done, row: rows.setdefault("row", row) and [])
    assert rows["row"]["env.engine"] == "graph"
    assert rows["row"]["excess"] == pytest.approx(plain["excess"], rel=1e-3)
