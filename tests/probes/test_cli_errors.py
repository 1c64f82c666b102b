"""Every error that a user can cause is one line on stderr, a non-zero exit, and no traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import probes
from probes import sweep
from probes.cli import main
from probes.device_names import read_devices
from probes.settings import CatalogueError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def fastslow(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def call(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(list(words))
        out, err = capsys.readouterr()
        code = ended.value.code
        return (code if isinstance(code, int) else 1), out, err

    return call


DIALS = """tasks:
  small:
    kind: two_timescale
    lenght: 64
  other: {kind: two_timescale, overlap: 7}
suites:
  tiny: &tiny
    tasks: [two_timescale]
    task: {overlp: 0.5}
    architectures: [gdn]
    learning_rates: [1e-3]
    smoke: true
  wide:
    <<: *tiny
    task: {}
    grid:
      arch.d_modl: [8, 16]
  plugged:
    <<: *tiny
    task: {}
    architectures: ["mixer:mixers.py:Averge"]
  short:
    <<: *tiny
    task: {}
    train:
      steps: 4
      warmup: 9
"""
MIXERS = """import torch

class Average(torch.nn.Module):
    def __init__(self, d_model):
        super().__init__()

class Broken(torch.nn.Module):
    def __init__(self):
        super().__init__()
"""
MISTAKES = [
    (["rnu"], "No such command 'rnu'; nearest is 'run'"),
    (["qqq"], "No such command 'qqq'; known: bayes, bench, check, figures, ls, report, run, sweep"),
    (["report", "runs", "--outt", "x"], "No such option: --outt; known: --all, --help"),
    (["sweep", "smoke", "--worker", "2"], "No such option: --worker; nearest is '--workers'"),
    (["sweep", "smoke", "--zzz"], "No such option: --zzz; known: --config, --device, --devices, --help, --kernels"),
    (
        ["bayes", "mqar", "--set", "task.pairs=100"],
        "mqar: pairs = 100: too many for length = 64, with their queries; nearest valid is 16, or length = 400",
    ),
    (
        ["bayes", "mqar", "--set", "task.length=20"],
        "pairs = 8: too many for length = 20, with their queries; nearest valid is 5, or length = 32",
    ),
    (
        ["bayes", "mqar_separated", "--set", "task.length=20"],
        "mqar: length = 20: too short for pairs = 8, with their queries, distractors = 8, blanks = 32; nearest valid",
    ),
    (["ls", "taks"], "nearest is 'tasks'"),
    (["ls", "--config", "absent.yaml"], "cannot read absent.yaml: No such file or directory"),
    (["ls", "tasks", "suites"], "unexpected extra argument"),
    (["bayes"], "bayes takes either a TASK"),
    (["run", "two_timescale"], "Missing argument"),
    (["bayes", "two_timescales"], "unknown task 'two_timescales'; nearest is 'two_timescale'"),
    (["bayes", "two_timescale", "--set", "task.overlp=1"], "unknown dial 'overlp'; nearest is 'overlap'"),
    (
        ["bayes", "two_timescale", "--set", "task.overlap=7"],
        "overlap = 7: input should be less than or equal to 1; nearest: 1",
    ),
    (["bayes", "two_timescale", "--set", "task.overlap=high"], "overlap = 'high'"),
    (["bayes", "two_timescale", "--set", "overlap=1"], "unknown section 'overlap'"),
    (["bayes", "two_timescale", "--set", "train.steps=3"], "dials of the task only"),
    (["bayes", "two_timescale", "--sequences", "none"], "Invalid value for '--sequences'"),
    (["bayes", "task:absent:Task"], "no module 'absent'"),
    (["bayes", "task:absent.py:Task"], "no file 'absent.py'"),
    (["bayes", "task:probes.task:Tusk"], "has no 'Tusk'; nearest is 'Task'"),
    (["bayes", "task:probes.config:Suite"], "is no subclass of probes.task.Task"),
    (["bayes", "task:broken.py:Task"], "SyntaxError"),
    (["bayes", "task:failing.py:Task"], "ZeroDivisionError: division by zero (failing.py, line 1)"),
    (["run", "two_timescale", "gnd"], "unknown architecture 'gnd'; nearest is 'gdn'"),
    (["run", "two_timescale", "gdn", "--set", "train.stpes=3"], "unknown key 'stpes'; nearest is 'steps'"),
    (
        ["run", "two_timescale", "gdn", "--set", "train.steps=-3"],
        "steps = -3: input should be greater than or equal to 1; nearest: 1",
    ),
    (
        ["run", "two_timescale", "gdn", "--set", "train.lr=0"],
        "lr = 0: input should be greater than 0; nearest: just above 0",
    ),
    (["run", "two_timescale", "gdn", "--set", f"seeds.data_seed={2**63}"], f"; nearest: {2**63 - 1}"),
    (["run", "two_timescale", "gdn", "--set", "arch.d_modl=3"], "unknown 'd_modl'; nearest: 'd_model'"),
    (["run", "two_timescale", "gdn", "--set", "arch.mixers.gdn.head_dm=3"], "unknown 'head_dm'; nearest: 'head_dim'"),
    (["run", "two_timescale", "gdn", "--device", "cuda:99"], "--device cuda:99"),
    (["run", "two_timescale", "gdn", "--device", "gpu"], "--device gpu: no such device"),
    (["run", "two_timescale", "gdn", "--seed", "-1"], "Invalid value for '--seed': -1 is below 0; nearest is 0"),
    (["run", "two_timescale", "gdn", "--seed", str(2**64)], f"is above {2**63 - 1}; nearest is {2**63 - 1}"),
    (["bayes", "two_timescale", "--sequences", "1"], "'--sequences': 1 is below 2; nearest is 2"),
    (["sweep", "smok"], "unknown suite 'smok'; nearest is 'smoke'"),
    (["sweep", "smoke", "--workers", "0"], "Invalid value for '--workers': 0 is below 1; nearest is 1"),
    (
        ["sweep", "smoke", "--config", "mine.yaml"],
        "mine.yaml:2: mine: unknown kind 'two_timescles'; nearest",
    ),
    (["sweep", "smoke", "--devices", "all"], "no CUDA device"),
    (["sweep", "smoke", "--devices", "0,1"], "no CUDA device"),
    (["sweep", "smoke", "--devices", "cpu"], "'cpu' is no CUDA device"),
    (["sweep", "smoke", "--devices", ""], "--devices '' names no device; write 0,1 or all"),
    (["sweep", "smoke", "--devices", "0,x"], "--devices 0,x: 'x' is no CUDA device; write 0,1 or all"),
    (["sweep", "smoke", "--devices", "0,cuda:x"], "'cuda:x' is no CUDA device"),
    (["run", "two_timescale", "gdn", "--precision", "fp8"], "--precision fp8: unknown"),
    (["check", "gnd"], "unknown architecture 'gnd'; nearest is 'gdn'"),
    (["check", "gdn", "--set", "task.vocab=3"], "name the task with --task"),
    (
        ["bayes", "small", "--config", "dials.yaml"],
        "dials.yaml:4: small: two_timescale: unknown dial 'lenght'",
    ),
    (["bayes", "other", "--config", "dials.yaml"], "dials.yaml:5: other: two_timescale: overlap = 7"),
    (["sweep", "tiny", "--config", "dials.yaml"], "dials.yaml:9: tiny: two_timescale: unknown dial 'overlp'; nearest"),
    (
        ["sweep", "wide", "--config", "dials.yaml"],
        "dials.yaml:17: wide: architecture 'gdn': spec: unknown 'd_modl'",
    ),
    (
        ["run", "two_timescale", "mixer:absent.py:M"],
        "'mixer:absent.py:M' cannot be imported (FileNotFoundError",
    ),
    (["run", "two_timescale", "mixer:mixers.py:Averge"], "'mixers.py' has no 'Averge' (it has: Average, Broken)"),
    (["run", "two_timescale", "mixer:mixers.py"], "does not say what to load"),
    (["run", "two_timescale", "mixer:mixers.py:Broken"], "does not take d_model=64 and {}"),
    (["run", "two_timescale", "model:absent:M"], "'model:absent:M' cannot be imported"),
    (
        ["run", "two_timescale", "gdn", "--set", "train.steps=2", "--set", "train.warmup=99999"],
        "train.warmup = 99999 is above train.steps = 2; nearest: 2",
    ),
    (
        ["run", "two_timescale", "gdn", "--set", "train.steps=60", "--set", "train.evaluations=500"],
        "train.evaluations = 500 is above train.steps = 60; nearest: 60",
    ),
    (["sweep", "short", "--config", "dials.yaml"], "dials.yaml:27: short: train.warmup = 9 is above train.steps = 4"),
    (["run", "two_timescale", "gdn", "--kernels", "fst"], "kernels: unknown 'fst'; nearest"),
    *[
        ([*words, "--kernels", "fla"], "kernels: 'fla' needs a CUDA device, this is 'cpu'; nearest: 'chunked'")
        for words in (["run", "two_timescale", "gdn"], ["run", "two_timescale", "attention"], ["sweep", "smoke"])
    ],
    (["sweep", "plugged", "--config", "dials.yaml"], "'mixers.py' has no 'Averge'"),
    *[
        ([*words, "--out", ""], "Invalid value for '--out': '' names no folder; nearest is 'runs'")
        for words in (["run", "two_timescale", "gdn"], ["sweep", "smoke"], ["figures"], ["bench", "filters"])
    ],
    *[
        (
            ["run", "two_timescale", "gdn", "--out", out],
            "Invalid value for '--out': 'mine.yaml' is a file, not a folder",
        )
        for out in ("mine.yaml", "mine.yaml/below/it")
    ],
    (["report", "absent"], "absent: no recorded sweep"),
    (["figures", "exces"], "unknown figure 'exces'"),
    (["bench", "fliters"], "unknown benchmark 'fliters'"),
]


@pytest.mark.parametrize(("words", "message"), MISTAKES, ids=[" ".join(words) for words, _ in MISTAKES])
def test_a_mistake_is_one_line(fastslow, words: list[str], message: str) -> None:
    if message == "no CUDA device" and torch.cuda.is_available():
        pytest.skip("needs a machine without a CUDA device")
    Path("mine.yaml").write_text("tasks:\n  mine: {kind: two_timescles}\n")
    Path("dials.yaml").write_text(DIALS)
    Path("broken.py").write_text("def\n")
    Path("mixers.py").write_text(MIXERS)
    Path("failing.py").write_text("1 / 0\n")
    before = set(Path().rglob("*"))
    code, out, err = fastslow(*words)
    assert code != 0
    assert message in err, err
    assert err.startswith("fastslow: ")
    assert err.count("\n") == 1
    assert out == ""
    assert {path for path in set(Path().rglob("*")) - before if "__pycache__" not in path.parts} == set()


def test_figures_are_never_written_into_the_package(fastslow) -> None:
    code, _, err = fastslow("figures", "--out", str(ROOT / "figures" / "new"))
    assert code == 1
    assert "that is the package of figures; nearest is 'runs/figures'" in err
    assert not (ROOT / "figures" / "new").exists()


def test_an_unexpected_error_keeps_its_traceback(fastslow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("probes.cli_list.show", lambda *words: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["ls"])


def test_a_known_error_shows_its_traceback_when_asked(fastslow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTSLOW_TRACEBACK", "1")
    with pytest.raises(ValueError, match="no such list"):
        main(["ls", "taks"])


def test_an_interrupt_is_one_line(fastslow, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*words: object, **settings: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("probes.cli_list.show", interrupt)
    code, out, err = fastslow("ls")
    assert (code, out, err) == (130, "", "fastslow: interrupted\n")
    monkeypatch.setattr("probes.cli_run.run_sweep", interrupt)
    assert fastslow("sweep", "smoke")[2] == "fastslow: interrupted; the same command goes on where it stopped\n"


def test_devices_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 4)
    assert read_devices("all") == ["cuda:0", "cuda:1", "cuda:2", "cuda:3"]
    assert read_devices("2, cuda:0") == ["cuda:2", "cuda:0"]
    with pytest.raises(CatalogueError, match="this machine has 4; nearest is 'cuda:3'"):
        read_devices("0,7")
    with pytest.raises(CatalogueError, match="cuda:1 is named twice"):
        read_devices("1,cuda:1")


def test_help_lists_every_command(fastslow) -> None:
    code, out, _ = fastslow()
    assert code == 0
    for command in ("ls", "check", "bayes", "run", "sweep", "report", "figures", "bench"):
        assert f"\n  {command} " in out


def test_ls_works_without_torch(tmp_path: Path) -> None:
    code = "import sys; sys.modules['torch'] = None; from probes.cli import main; main(['ls'])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "two_timescale" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("device", "message"),
    [("cuda", "device cuda: torch finds no CUDA device"), ("cpu:x", "device cpu:x: no such device; nearest is 'cpu'")],
)
def test_the_library_refuses_a_device_as_the_command_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, message: str
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(CatalogueError, match=message):
        probes.run("two_timescale", "gdn", out=tmp_path / "out", device=device)
    with pytest.raises(CatalogueError, match=message):
        sweep.run("smoke", out=tmp_path / "out", device=device)
    with pytest.raises(CatalogueError, match=message):
        sweep.run("smoke", out=tmp_path / "out", devices=[device])
    with pytest.raises(CatalogueError, match="devices is empty"):
        sweep.run("smoke", out=tmp_path / "out", devices=[])
    assert not (tmp_path / "out").exists()
