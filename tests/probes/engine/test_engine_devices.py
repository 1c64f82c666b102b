"""Jobs over several devices: dealt by expected time, and the same results as from one."""

import signal

import pandas as pd
import pytest
from engine_jobs import job, run

from probes import sweep
from probes.config import Suite
from probes.engine import devices
from probes.engine.devices import Dealer
from probes.engine.jobs import expected_seconds
from probes.trial import Runtime

SUITE = {
    "tasks": ["two_timescale"],
    "architectures": ["attention"],
    "learning_rates": [1e-3, 1e-2],
    "seeds": [0, 1],
    "task": {"regimes": 2, "vocab": 4, "switch_rate": 0.1, "length": 12, "burn_in": 2, "windows": [1]},
    "train": {"steps": 6, "batch_size": 4, "warmup": 1, "evaluations": 2},
    "evaluate": {"validation_sequences": 8, "test_sequences": 16, "readout_positions": 0},
    "arch": {"d_model": 16, "d_ff": 16},
    "smoke": True,
}


def test_jobs_are_dealt_out_by_expected_time():
    jobs = [job(lr=lr) for lr in (1e-2, 3e-3, 1e-3, 3e-4)]
    dealer = Dealer(2)
    dealt = dealer.deal(list(zip(jobs, (1.0, 2.0, 4.0, 2.0), strict=True)))
    assert [[each.trial.train.lr for each in own] for own in dealt] == [[1e-3, 1e-2], [3e-3, 3e-4]]
    assert dealer.left == [5.0, 4.0]
    dealer.done(jobs[1])
    assert dealer.left == [5.0, 2.0]
    assert dealer.deal([(job(seed=5), 1.0)])[1]


def test_equal_jobs_are_dealt_out_evenly():
    dealer = Dealer(2)
    dealt = dealer.deal([(job(lr=1e-3 * 1.03**index), 3.3) for index in range(32)])
    assert [len(own) for own in dealt] == [16, 16]


def test_jobs_with_the_same_data_stay_together_as_long_as_the_work_is_even():
    dealer = Dealer(2)
    jobs = [(job(seed=seed, lr=lr), 1.0) for lr in (1e-3, 2e-3, 3e-3) for seed in (0, 1)]
    dealt = dealer.deal(jobs)
    assert [{each.trial.seeds.data_seed for each in own} for own in dealt] == [{0}, {1}]
    assert [len(own) for own in dealt] == [3, 3]
    assert [len(own) for own in dealer.deal([(job(seed=1, lr=4e-3), 1.0)])] == [0, 1]
    assert [len(own) for own in dealer.deal([(job(seed=1, lr=5e-3), 1.0)])] == [1, 0]


def test_more_steps_and_wider_models_are_expected_to_take_longer():
    assert expected_seconds(job(steps=80).trial) == pytest.approx(2 * expected_seconds(job(steps=40).trial))
    assert expected_seconds(job(d_model=64).trial) > expected_seconds(job(d_model=8).trial)


def test_the_processes_never_hear_an_interrupt_and_end_with_it(tmp_path, monkeypatch):
    """A terminal sends it to all of a command's processes; the command alone says something."""
    seen = []
    context = devices.mp.get_context("spawn")

    class Process:
        def __init__(self, **_):
            pass

        def start(self):
            seen.append(signal.pthread_sigmask(signal.SIG_BLOCK, []))

        def is_alive(self):
            return True

        def terminate(self):
            seen.append("terminated")

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(context, "Process", Process)
    monkeypatch.setattr(devices, "_hear", interrupted)
    with pytest.raises(KeyboardInterrupt):
        devices.run_jobs([job()], tmp_path, Runtime(), ["cpu", "cpu"], threads=1)
    assert [signal.SIGINT in blocked for blocked in seen[:2]] == [True, True]
    assert seen[2:] == ["terminated", "terminated"]
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


@pytest.mark.slow
def test_two_processes_give_the_results_of_one(tmp_path):
    jobs = [job(lr=1e-2), job(lr=1e-3), job("gdn", steps=6)]
    one = run(jobs, tmp_path / "one")
    rows, heard = {}, []

    def then(done, row):
        rows[done.trial.identity()] = row
        return []

    devices.run_jobs(jobs, tmp_path / "two", Runtime(), ["cpu", "cpu"], threads=1, listener=heard.append, then=then)
    assert {i: row["excess"] for i, row in rows.items()} == {i: row["excess"] for i, row in one.items()}
    assert {event.step for event in heard} >= {40}


def test_a_sweep_through_the_engine_has_the_rows_of_the_plain_one(tmp_path, monkeypatch):
    plain = sweep.run(Suite(**SUITE), out=tmp_path, name="plain", workers=1)

    def through_engine(jobs, out, runtime, *, workers, threads, listener, then):
        devices.run_jobs(jobs, out, runtime, ["cpu"], threads=threads, listener=listener, then=then)

    monkeypatch.setattr(sweep, "run_jobs", through_engine)
    packed = sweep.run(Suite(**SUITE), out=tmp_path, name="packed", workers=1)
    assert list(packed["env.engine"].unique()) == ["steps"]
    assert list(packed.columns) == list(plain.columns)
    same = ["trial", "folder", "status", "chosen", "lr", "model_seed", "test_digest", "parameters"]
    pd.testing.assert_frame_equal(packed[same], plain[same])
    assert packed["excess"].to_numpy() == pytest.approx(plain["excess"].to_numpy(), rel=1e-3)
    # the same command again finds everything done
    again = sweep.run(Suite(**SUITE), out=tmp_path, name="packed", workers=1)
    pd.testing.assert_frame_equal(again, packed)
