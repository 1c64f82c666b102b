"""One trial from its settings to its folder: build, train, choose nothing, score once on test, write whole.

While it runs, a trial keeps its last checkpoint under `.partial/`; killed at any moment, it goes on from there to
the same numbers. Its folder appears under its name only when it is complete.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Protocol

import numpy as np
import torch
from safetensors.torch import load_model, save_model
from torch import nn

from architectures import Output, build
from architectures.kernels import check as check_kernels
from probes import environment
from probes.config import Trial
from probes.controls import make_control
from probes.controls_check import Checker
from probes.fields import FieldRecorder
from probes.files import whole_file, whole_folder
from probes.messages import nearest
from probes.plugins import source_digests
from probes.readouts import SCORES, layer_readouts
from probes.recall_report import regime_columns, robustness_columns
from probes.results import SCHEMA_VERSION, read_json, read_row, write_json
from probes.row import curves_of, model_columns, reference_columns
from probes.scoring import EvaluationSet, Sums, refuse_beaten
from probes.splits import split_generator
from probes.splits_check import check_trial
from probes.task import Batch, Task
from probes.tasks import create
from probes.training import Diverged, Progress, Trainer, evaluation_steps
from probes.triggers import lent, takes_triggers

PRECISIONS = {"float32": None, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Labels:
    """How a trial is called in tables: names in the catalogue, and its grid point. Not part of its identity.

    `matched` is what the suite matched its architectures in, `residual` how far from the first one this one remains.
    """

    task: str
    architecture: str
    point: str = ""
    matched: str = ""
    residual: float = math.nan


@dataclass(frozen=True)
class Runtime:
    """Where and how a trial runs: recorded, not hashed. `precision`: float32 or bf16 (autocast)."""

    device: str = "cpu"
    precision: str = "float32"
    kernels: str = "auto"

    @staticmethod
    def on(device: str, precision: str | None, kernels: str) -> Runtime:
        """On a device, in its own precision where none is given: bf16 on a GPU, float32 on a CPU.

        Raises `SpecError` for kernels that there are not, or that cannot run on the device.
        """
        check_kernels(kernels, torch.device(device).type)
        return Runtime(device, precision or ("bf16" if device.startswith("cuda") else "float32"), kernels)

    def describe(self) -> dict[str, Any]:
        """The environment as it is recorded."""
        return environment.describe(self.device, precision=self.precision, kernels=self.kernels)


@dataclass(frozen=True)
class Event:
    """What a running trial tells: after every step, with the last known validation excess (nats)."""

    trial: str
    name: str
    step: int
    steps: int
    excess: float


Listener = Callable[[Event], None]

FAILURES = (Diverged, RuntimeError, ValueError, NotImplementedError)
"""What ends a trial with a recorded row; anything else is a fault of the program."""


class Resumable(Protocol):
    """A trainer, as far as checkpoints and the history go."""

    metrics: dict[str, float]

    step: int

    def state(self) -> dict[str, Any]:
        """All that `restore` needs."""

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on from where `state` was taken."""


@dataclass(frozen=True)
class Result:
    """A finished trial, read from its folder."""

    folder: Path
    trial: Trial
    row: dict[str, Any]

    @property
    def curves(self) -> dict[str, np.ndarray]:
        """The arrays of `curves.npz`."""
        with np.load(self.folder / "curves.npz") as arrays:
            return {name: arrays[name] for name in arrays.files}

    def task(self) -> Task:
        """The trial's task."""
        return create(self.trial.task["kind"], self.trial.task["settings"])

    def model(self, device: str = "cpu") -> nn.Module:
        """The trained model in evaluation mode. FileNotFoundError where the trial ended without weights."""
        model = build(self.trial.architecture).to(device)
        load_model(model, self.folder / "weights.safetensors", device=device)
        return model.eval()


def make_trial(task_kind: str, task: Task, spec: Mapping[str, Any], train, evaluate, seeds) -> Trial:
    """The trial of a task, a resolved spec and settings."""
    identity = {"kind": task_kind, "version": task.version, "settings": dict(task.settings)}
    return Trial(
        task=identity,
        architecture=dict(spec),
        train=train,
        evaluate=evaluate,
        seeds=seeds,
        sources=source_digests(task_kind, dict(spec)),
    )


def folder_name(trial: Trial, labels: Labels) -> str:
    """`TASK-ARCHITECTURE-sSEED-HASH`, safe as a file name."""
    task, architecture = (re.sub(r"[^\w.]", "_", name) for name in (labels.task, labels.architecture))
    return f"{task}-{architecture}-s{trial.seeds.model_seed}-{trial.identity()[:12]}"


def read(folder: Path) -> Result:
    """A finished trial's folder. FileNotFoundError where there is none, `CorruptRecord` where it is damaged."""
    return Result(folder, Trial.model_validate(read_json(folder / "trial.json")), read_row(folder))


@lru_cache(maxsize=8)
def _task(canonical: str) -> Task:
    settings = json.loads(canonical)
    return create(settings["kind"], settings["settings"])


@lru_cache(maxsize=16)
def _evaluation_set(
    canonical: str, data_seed: int, split: Any, sequences: int, batch_size: int, device: str, window: int | None
) -> EvaluationSet:
    task = _task(canonical)
    reference = None if window is None else task.window(window)
    extra = None if reference is None else {"receptive_field": reference}
    return EvaluationSet(task, data_seed, split, sequences, batch_size=batch_size, device=device, extra=extra)


class Runner:
    """Trains and scores one trial; `run` returns its row. Evaluation sets are shared by the trials of a process."""

    def __init__(self, trial: Trial, labels: Labels, runtime: Runtime, out: Path, listener: Listener | None) -> None:
        self.trial, self.labels, self.runtime, self.out = trial, labels, runtime, out
        self.listener = listener
        self.name = folder_name(trial, labels)
        self.partial = out / ".partial" / trial.identity()
        self.canonical = json.dumps(trial.task, sort_keys=True)
        self.task = _task(self.canonical)
        if runtime.precision not in PRECISIONS:
            raise ValueError(f"unknown precision {runtime.precision!r}{nearest(runtime.precision, PRECISIONS)}")
        self.autocast = PRECISIONS[runtime.precision]
        self.history: list[dict[str, float]] = []
        self.train_seconds = 0.0
        self.seconds = 0.0
        self.engine = "eager"
        """How the steps were run: `eager`, `graph`, or `eager: why no graph`."""
        self.kernels_used: dict[str, str] | None = None
        """Kernels of the steps by operation, where these were fixed before training; None: those of the last pass."""
        self.unscored: dict[str, str] = {}
        """Why a variant could not be scored, by its name."""

    @cached_property
    def variants(self) -> dict[str, dict[str, Any]]:
        """The variants that the task and the model can have, by name."""
        evaluate, checker = self.trial.evaluate, Checker(self.task, self.trial.architecture)

        def applies(control: Mapping[str, Any]) -> bool:
            try:
                return checker.inapplicable(control, evaluate.control) is None
            except ValueError:  # the trial was not checked before it began; scoring says what is wrong
                return True

        return {name: control for name, control in evaluate.variants.items() if applies(control)}

    def evaluation_set(self, split: str, sequences: int, window: int | None = None) -> EvaluationSet:
        """The sequences of one evaluation split of this trial, with the references' predictions."""
        trial = self.trial
        size = trial.evaluate.batch_size
        return _evaluation_set(
            self.canonical, trial.seeds.data_seed, split, sequences, size, self.runtime.device, window
        )

    def score(
        self,
        model: nn.Module,
        evaluation: EvaluationSet,
        control: Mapping[str, Any],
        metrics: dict[str, float],
        *,
        references: bool = True,
        fields: FieldRecorder | None = None,
    ) -> dict[str, Sums]:
        """Scores the model under one control; the means of what it reports of itself are put into `metrics`.

        `fields` takes what it reports of every position.
        """
        model.eval()
        generator = split_generator(self.trial.seeds.data_seed, "test", "control", self.runtime.device)
        seen: dict[str, list[float]] = {}
        tensors = {name: value for name, value in control.items() if name != "trigger"}
        if "trigger" in control:  # the model's own gate, to which others are calibrated, may read a tensor
            tensors = {**self.trial.evaluate.control, **tensors}

        def logits(batch: Batch) -> torch.Tensor:
            output = self.forward(model, batch, tensors, generator)
            for name, value in output.extras.get("metrics", {}).items():
                seen.setdefault(name, []).append(float(value))
            if fields is not None:
                fields.add(batch, output.extras.get("fields", {}))
            return output.logits

        def passes() -> Iterator[Mapping[str, Any]]:
            validation = self.evaluation_set("validation", self.trial.evaluate.validation_sequences)
            own = split_generator(self.trial.seeds.data_seed, "validation", "control", self.runtime.device)
            for batch in validation.batches:
                with torch.no_grad():
                    yield self.forward(model, batch, tensors, own).extras

        with lent(model, control["trigger"], passes) if "trigger" in control else nullcontext():
            sums = evaluation.score(logits, references=references)
        metrics.update({name: float(np.mean(values)) for name, values in seen.items()})
        return sums

    def forward(self, model: nn.Module, batch: Batch, control: Mapping[str, Any], generator: torch.Generator) -> Output:
        """The model's output at the scored positions of a batch."""
        tensors = make_control(control, batch, self.task, generator, model)
        kind = torch.device(self.runtime.device).type
        with torch.autocast(kind, dtype=self.autocast, enabled=self.autocast is not None):
            return model(batch.tokens, positions=batch.scored, control=tensors)

    def build(self) -> nn.Module:
        """The model, initialised from the trial's model seed alone.

        Raises `SplitOverlap` where a finite training set shares a sequence with another split, and `BeatenBayes` where
        a user's own task has a reference that is better than Bayes on validation.
        """
        check_trial(self.task, self.trial)
        if self.trial.task["kind"].startswith("task:"):  # the catalogue's are held to it by tests
            validation = self.evaluation_set("validation", self.trial.evaluate.validation_sequences)
            refuse_beaten(self.task, validation.score())
        # The model is initialised on the CPU; the generators of GPUs are left alone.
        with torch.random.fork_rng(devices=[]):
            torch.random.default_generator.manual_seed(self.trial.seeds.model_seed)
            model = build(self.trial.architecture, kernels=self.runtime.kernels)
        return model.to(self.runtime.device)

    def train(self, model: nn.Module) -> None:
        """Trains to the end, from the last checkpoint where there is one. Raises `Diverged`."""
        trainer = Trainer(
            model,
            self.task,
            self.trial.train,
            data_seed=self.trial.seeds.data_seed,
            device=self.runtime.device,
            autocast=self.autocast,
        )
        self.resume(trainer)
        for until in evaluation_steps(self.trial.train):
            if until <= trainer.step:
                continue
            started = time.perf_counter()
            progress = trainer.advance(until, self.tell)
            self.train_seconds += time.perf_counter() - started
            self.evaluate(model, trainer, progress)
            self.seconds += time.perf_counter() - started
            self.keep(trainer)

    def resume(self, trainer: Resumable) -> None:
        """Puts a new trainer where the last checkpoint was taken, if there is a whole one of this kind of device."""
        checkpoint = self.partial / "checkpoint.pt"
        if not checkpoint.exists():
            return
        try:
            saved = torch.load(checkpoint, map_location=self.runtime.device, weights_only=True)
        except (RuntimeError, EOFError, OSError, UnpicklingError):  # cut off when the machine stopped
            return
        if saved["device"] != torch.device(self.runtime.device).type:
            return
        trainer.restore(saved["trainer"])
        self.history, self.train_seconds, self.seconds = saved["history"], saved["train_seconds"], saved["seconds"]
        if trainer.step == self.trial.train.steps:  # only the scores are left: no step will tell of it
            self.tell(trainer.step)

    def keep(self, trainer: Resumable) -> None:
        """Writes the checkpoint from which `resume` goes on."""
        started = time.perf_counter()
        with whole_file(self.partial / "checkpoint.pt", durable=False) as temporary:
            torch.save(
                {
                    "device": torch.device(self.runtime.device).type,
                    "trainer": trainer.state(),
                    "history": self.history,
                    "train_seconds": self.train_seconds,
                    "seconds": self.seconds,
                },
                temporary,
            )
        self.seconds += time.perf_counter() - started

    def tell(self, step: int) -> None:
        """Tells the listener that `step` steps are done."""
        if self.listener is not None:
            excess = self.history[-1]["excess"] if self.history else math.nan
            self.listener(Event(self.trial.identity(), self.name, step, self.trial.train.steps, excess))

    def evaluate(self, model: nn.Module, trainer: Resumable, progress: Progress) -> None:
        """Scores validation and appends to the history. Raises `Diverged` where the score is not finite."""
        trial = self.trial
        validation = self.evaluation_set("validation", trial.evaluate.validation_sequences)
        sums = self.score(model, validation, trial.evaluate.control, {}, references=False)
        excess = sums["model"].excess().mean
        if not math.isfinite(excess) and not math.isfinite(sums["model"].nll.sum()):
            raise Diverged(progress.step, excess)
        entry = {"step": float(progress.step), "loss": progress.loss, "excess": excess}
        for name, control in self.variants.items():
            if "trigger" in control:  # calibrated on this split, so it is left to the test
                continue
            same = control == trial.evaluate.control
            part = sums["model"] if same else self.variant(name, model, validation, {})
            if part is not None:
                entry[f"variant/{name}"] = part.excess().mean
        self.history.append({**entry, **{f"metric/{k}": v for k, v in trainer.metrics.items()}})

    def variant(self, name: str, model: nn.Module, evaluation: EvaluationSet, metrics: dict[str, float]) -> Sums | None:
        """The model's score under one variant; None, and said in `unscored`, where it fails: the trial goes on."""
        if name in self.unscored:
            return None
        try:
            return self.score(model, evaluation, self.variants[name], metrics, references=False)["model"]
        except Exception as error:
            self.unscored[name] = _told(error)
            return None

    def run(self) -> dict[str, Any]:
        """Runs the trial and writes its folder; a failure is written as a row too, without weights."""
        model: nn.Module | None = None
        try:
            model = self.build()
            self.train(model)
        except FAILURES as error:
            return self.conclude(model, error)
        return self.conclude(model)

    def conclude(self, model: nn.Module | None, error: Exception | None = None) -> dict[str, Any]:
        """Scores a trained model on test and writes the trial's folder; or writes down how it failed."""
        row = self.base_row()
        curves: dict[str, np.ndarray] = {}
        if model is not None and error is None:
            started = time.perf_counter()
            try:
                scores, curves = self.score_columns(model)
                row.update({**scores, **self.training_columns()})
            except FAILURES as found:
                error = found
            self.seconds += time.perf_counter() - started
        if model is not None and row["parameters"] is None:
            row["parameters"] = sum(parameter.numel() for parameter in model.parameters())
        status = "ok"
        if isinstance(error, Diverged):
            status, row["error"] = "diverged", str(error)
        elif error is not None:
            status, row["error"] = "failed", _told(error)
        else:
            row["error"] = "; ".join(f"variant {name} not scored: {why}" for name, why in self.unscored.items())
        used = getattr(model, "kernels_used", {}) if self.kernels_used is None else self.kernels_used
        row["env.kernels_used"] = json.dumps(used, sort_keys=True)
        row["env.engine"] = self.engine
        row.update({"status": status, "train_seconds": self.train_seconds, "seconds": self.seconds})
        with whole_folder(self.out / "trials" / self.name) as folder:
            (folder / "trial.json").write_text(self.trial.model_dump_json(indent=1) + "\n")
            write_json(folder / "result.json", row)
            arrays: dict[str, Any] = {**self.training_curves(), **curves}
            np.savez_compressed(folder / "curves.npz", **arrays)
            if status == "ok" and model is not None:
                save_model(model, str(folder / "weights.safetensors"))
        shutil.rmtree(self.partial, ignore_errors=True)
        return row

    def base_row(self) -> dict[str, Any]:
        """What is known before the trial has run."""
        trial, env = self.trial, self.runtime.describe()
        columns = model_columns(trial.architecture, self.task.length)
        dials = {f"dial.{name}": value for name, value in self.task.dials().items()}
        return {
            "schema_version": SCHEMA_VERSION,
            "trial": trial.identity(),
            "folder": self.name,
            "error": "",
            "task": self.labels.task,
            "task_kind": trial.task["kind"],
            "task_version": trial.task["version"],
            "architecture": self.labels.architecture,
            "point": self.labels.point,
            "matched": self.labels.matched,
            "match_residual": self.labels.residual,
            "model_seed": trial.seeds.model_seed,
            "data_seed": trial.seeds.data_seed,
            "lr": trial.train.lr,
            "steps": trial.train.steps,
            "test_sequences": trial.evaluate.test_sequences,
            **{k: v if isinstance(v, int | float | str | bool) else json.dumps(v) for k, v in dials.items()},
            **{f"env.{name}": value for name, value in env.items()},
            **columns,
            **regime_columns(self.task, columns["state_bytes"]),
        }

    def score_columns(self, model: nn.Module) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """The test split's columns and curves, with every variant and every further evaluation task."""
        trial = self.trial
        field = model_columns(trial.architecture, self.task.length)["receptive_field"]
        evaluation = self.evaluation_set("test", trial.evaluate.test_sequences, field)
        metrics: dict[str, float] = {}
        fields = FieldRecorder()
        sums = self.score(model, evaluation, trial.evaluate.control, metrics, fields=fields)
        row: dict[str, Any] = {"test_digest": evaluation.digest, **reference_columns(sums)}
        row.update({f"metric.{name}": value for name, value in metrics.items()})
        curves = {**curves_of(sums), **fields.curves()}
        for name, control in self.variants.items():
            if "trigger" in control and not takes_triggers(model):
                continue
            own, part = dict(metrics), sums["model"]
            if control != trial.evaluate.control:
                own = {}
                scored = self.variant(name, model, evaluation, own)
                if scored is None:
                    continue
                part = scored
            row.update(_short(f"variant.{name}", part))
            row.update({f"variant.{name}.metric.{key}": value for key, value in own.items()})
            curves[f"variant/{name}/position_excess"] = part.position["excess"] / np.maximum(part.position["count"], 1)
        if trial.evaluate.readout_positions:
            generator = split_generator(trial.seeds.data_seed, "test", "readout", self.runtime.device)
            validation = self.evaluation_set("validation", trial.evaluate.validation_sequences)
            for readout in layer_readouts(
                model.eval(),
                self.task,
                validation.batches,
                evaluation.batches,
                positions=trial.evaluate.readout_positions,
                control=lambda batch: make_control(trial.evaluate.control, batch, self.task, generator, model),
            ):
                prefix = f"readout.{readout.belief}.layer_{readout.layer}"
                row.update({f"{prefix}.{field}": getattr(readout, field) for field in SCORES})
        for name, task in self.task.evaluations().items():
            size = trial.evaluate.batch_size
            count = trial.evaluate.test_sequences
            further = EvaluationSet(
                task, trial.seeds.data_seed, "test", count, batch_size=size, device=self.runtime.device
            )
            part = self.score(model, further, trial.evaluate.control, {})["model"]
            row.update(_short(f"evaluation.{name}", part))
        row.update(robustness_columns(row))
        return row, curves

    def training_columns(self) -> dict[str, Any]:
        """What the course of training says: the last validation excess, and whether it was still falling."""
        excesses = [entry["excess"] for entry in self.history]
        falling = len(excesses) > 1 and excesses[-2] - excesses[-1] > 0.05 * abs(excesses[-1])
        return {"validation_excess": excesses[-1], "still_improving": falling}

    def training_curves(self) -> dict[str, np.ndarray]:
        """Arrays by evaluation step: training loss, validation excess, and what the model reported of itself."""
        step = np.array([entry["step"] for entry in self.history])
        curves = {
            "train_step": step,
            "train_loss": np.array([entry["loss"] for entry in self.history]),
            "validation_step": step,
            "validation_excess": np.array([entry["excess"] for entry in self.history]),
        }
        for name in sorted({key for entry in self.history for key in entry if key.startswith(("metric/", "variant/"))}):
            curve = f"{name}/validation_excess" if name.startswith("variant/") else name
            curves[curve] = np.array([entry.get(name, math.nan) for entry in self.history])
        return curves


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error) or 'no message').splitlines()[0]}"


def _short(prefix: str, sums: Sums) -> dict[str, Any]:
    excess, accuracy, whole = sums.excess(), sums.accuracy(), sums.sequence_accuracy()
    return {
        f"{prefix}.excess": excess.mean,
        f"{prefix}.excess_se": excess.se,
        f"{prefix}.accuracy": math.nan if accuracy is None else accuracy.mean,
        f"{prefix}.sequence_accuracy": math.nan if whole is None else whole.mean,
    }
