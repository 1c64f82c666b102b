"""Tiny jobs for the engine's tests, and a run of them on the CPU."""

from architectures import resolve
from probes.config import Evaluation, Seeds, Training
from probes.engine.jobs import Engine
from probes.executor import Job
from probes.tasks import create
from probes.trial import Labels, Runtime, make_trial

TASK = {"regimes": 2, "vocab": 4, "overlap": 1.0, "switch_rate": 0.1, "length": 12, "burn_in": 2, "windows": [1]}


def task(**changes):
    return create("two_timescale", {**TASK, **changes})


def job(layers="attention", *, seed=0, lr=1e-2, steps=40, d_model=8, spec=None, **train):
    made = task()
    given = spec or {"layers": layers, "d_model": d_model, "d_ff": 8}
    spec = resolve({**given, "vocab_size": made.vocab_size})
    settings = Training(**{"steps": steps, "batch_size": 4, "warmup": 3, "lr": lr, "evaluations": 2, **train})
    evaluate = Evaluation(validation_sequences=8, test_sequences=8, readout_positions=0)
    trial = make_trial("two_timescale", made, spec, settings, evaluate, Seeds(data_seed=seed, model_seed=seed))
    return Job(trial, Labels("two_timescale", layers))


def run(jobs, out, **settings):
    rows = {}

    def then(done, row):
        rows[done.trial.identity()] = row
        return []

    engine = Engine(out, Runtime(), **settings)
    engine.add(jobs)
    engine.run(then)
    return rows
