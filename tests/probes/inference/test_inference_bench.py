"""The benchmark of inference in small: its rows, their bounds, what it refuses, and the published numbers it shows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from decoding_models import V, spec_of

from architectures import accounting
from architectures.decoding import Prefiller
from architectures.published import published_spec
from probes.bench import inference
from probes.inference import bound, report, verify
from probes.inference.models import Case, cases, make
from probes.inference.published import CONTEXTS, published

SMALL = {
    "device": "cpu",
    "scales": ["180M"],
    "contexts": [13],
    "chunk": 8,
    "warmup": 2,
    "runs": 2,
    "tokens": 5,
    "copied": 4096,
    "size": 16,
}
CPU = torch.device("cpu")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """The published models in small under their names."""
    monkeypatch.setattr("probes.inference.models.published_spec", lambda name, scale: spec_of(name))
    monkeypatch.setattr(inference, "_verify", lambda *args: None)


@pytest.mark.usefixtures("small")
def test_every_model_is_measured(tmp_path, capsys) -> None:
    inference.run(tmp_path, **SMALL)
    record = json.loads((tmp_path / "inference.json").read_text())
    rows = record["rows"]
    labels = {case.label for case in cases("180M")}
    assert len(labels) == 14
    assert {row["model"] for row in rows} == labels
    assert len(rows) == 14 + 4  # AMOR's four with the dial and with their own gate
    assert all(row["state_bytes"] == row["counted_bytes"] for row in rows)
    for row in rows:
        assert row["status"] == "ok"
        assert row["prefill_s"] > 0
        assert len(row["decode_runs_ms"]) == 2
        assert row["decode_over_bound"] == pytest.approx(row["decode_ms"] / row["decode_bound_ms"])
        if row["gate"] == "dial":
            assert abs(row["prefill_rate"] - 0.4) < 0.1
            assert abs(row["decode_rate"] - 0.22) <= 1 / 10
    assert any("ssd chunked" in line and "accepted" in line for line in record["kernels"])
    assert {found["rival"] for found in record["crossovers"]} == {
        "Mamba2 Serial Hybrid",
        "Mamba2 Fused Hybrid",
        "Gated DeltaNet Serial Hybrid",
    }
    text = (tmp_path / "inference.md").read_text()
    for title in report.TITLES.values():
        assert f"**{title}, 180M, batch 1**" in text
    assert "Oryx-TM linear" in capsys.readouterr().out


@pytest.mark.usefixtures("small")
def test_running_out_of_memory_is_a_row(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self, tokens, *args, **kwargs):
        if tokens.shape[1] == 21:
            raise torch.OutOfMemoryError("no room")
        return whole(self, tokens, *args, **kwargs)

    whole = Prefiller.__call__
    monkeypatch.setattr(Prefiller, "__call__", full)
    inference.run(tmp_path, **SMALL | {"models": ["Transformer"], "contexts": [13, 21]})
    rows = json.loads((tmp_path / "inference.json").read_text())["rows"]
    assert [row["status"] for row in rows] == ["ok", "out of memory"]
    assert "decode_ms" not in rows[1]
    assert rows[1]["decode_bound_ms"] > 0
    assert "| OOM |" in (tmp_path / "inference.md").read_text()


@pytest.mark.usefixtures("small")
def test_what_was_found_before_memory_ran_out_is_kept(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    from probes.inference import measure

    class Full(measure.Decoder):
        def generate(self, token, count):
            if self.room == 21 + 12:
                raise torch.OutOfMemoryError("no room")
            return super().generate(token, count)

    monkeypatch.setattr(measure, "Decoder", Full)
    inference.run(tmp_path, **SMALL | {"models": ["Mamba2"], "contexts": [13, 21]})
    rows = json.loads((tmp_path / "inference.json").read_text())["rows"]
    assert [row["status"] for row in rows] == ["ok", "out of memory"]
    assert rows[1]["prefill_s"] > 0
    assert "decode_ms" not in rows[1]


@pytest.mark.usefixtures("small")
def test_the_median_of_prefills_within_patience(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    from probes.inference import measure

    times = iter([5.0, 1.0, 3.0, 1.0, 9.0, 2.0, 4.0] * 9)
    monkeypatch.setattr(measure, "seconds", lambda work, device, **_: (work(), next(times))[1])
    quick = SMALL | {"models": ["Mamba2"], "warmup": 0, "runs": 1, "prefills": 3}
    inference.run(tmp_path, **quick | {"patience": 100})
    row = json.loads((tmp_path / "inference.json").read_text())["rows"][0]
    assert len(row["prefill_runs_s"]) == 3
    assert row["prefill_s"] == sorted(row["prefill_runs_s"])[1]
    inference.run(tmp_path, **quick | {"patience": 0})
    row = json.loads((tmp_path / "inference.json").read_text())["rows"][0]
    assert row["prefill_runs_s"] == [row["prefill_s"]]


@pytest.mark.usefixtures("small")
def test_a_run_goes_on_where_another_stopped(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple] = []
    whole = inference.measure

    def noted(case, prefill, protocol, rates):
        seen.append((case.label, protocol.context, protocol.rates is None))
        return whole(case, prefill, protocol, rates)

    monkeypatch.setattr(inference, "measure", noted)
    routed = "Amor-Mamba2 + distilled router"
    first = SMALL | {"models": ["Mamba2", routed], "own_contexts": [13]}
    inference.run(tmp_path / "a", **first | {"gates": ["dial"]})
    path = tmp_path / "a" / "inference.json"
    before = json.loads(path.read_text())
    seen.clear()
    more = first | {"contexts": [13, 21], "resume": str(path)}
    inference.run(tmp_path / "b", **more)
    assert seen == [  # each model's first is a warm-up
        ("Mamba2", 16, False),
        ("Mamba2", 21, False),
        (routed, 16, False),
        (routed, 21, False),
        (routed, 13, True),
    ]
    after = json.loads((tmp_path / "b" / "inference.json").read_text())
    assert after["rows"][: len(before["rows"])] == before["rows"]
    assert len(after["rows"]) == 5
    assert [run["dials"]["gates"] for run in after["earlier"]] == [["dial"]]
    assert all("commit" in row for row in after["rows"])
    inference.run(tmp_path / "c", **first | {"resume": str(path), "again": True, "models": ["Mamba2"]})
    again = json.loads((tmp_path / "c" / "inference.json").read_text())["rows"]
    assert [(row["model"], row["context"]) for row in again] == [("Mamba2", 13), (routed, 13)]
    assert again[0] != before["rows"][0]
    assert again[1] == before["rows"][1]


@pytest.mark.usefixtures("small")
def test_records_that_do_not_go_together_are_named(tmp_path) -> None:
    inference.run(tmp_path, **SMALL | {"models": ["Mamba2"]})
    path = tmp_path / "inference.json"
    with pytest.raises(ValueError, match="tokens: 6, but the rows"):
        inference.run(tmp_path / "b", **SMALL | {"resume": str(path), "tokens": 6})
    record = json.loads(path.read_text())
    path.write_text(json.dumps(record | {"environment": {"device_name": "another"}}))
    with pytest.raises(ValueError, match="'another'"):
        inference.run(tmp_path / "b", **SMALL | {"resume": str(path)})
    path.write_text(json.dumps(record | {"schema": "0"}))
    with pytest.raises(ValueError, match="schema 0"):
        inference.run(tmp_path / "b", **SMALL | {"resume": str(path)})
    with pytest.raises(FileNotFoundError, match="is not there"):
        inference.run(tmp_path / "b", **SMALL | {"resume": str(tmp_path / "none.json")})


def test_scales_after_the_first_are_folded_away() -> None:
    known = json.loads((Path(__file__).resolve().parents[3] / "docs/recorded/inference_h200.json").read_text())["rows"]
    rows = [{**row, "scale": scale} for scale in ("1.5B", "440M") for row in known if row["scale"] == "1.5B"]
    rows.append({**rows[0], "batch": 4, "status": "out of memory", "decode_ms": None})
    text = report.markdown(rows)
    first, _, rest = text.partition("<details>\n<summary>The same at 440M</summary>")
    assert first.count("**Prefill latency (s), 1.5B, batch 1**") == 1
    assert "440M" not in first
    folded, _, several = rest.partition("</details>")
    assert "**Decode latency (ms/token), 440M, batch 1**" in folded
    assert "/ OOM |" in several


@pytest.mark.usefixtures("small")
def test_graphs_that_disagree_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    from probes.inference import kernels

    case = Case("Mamba2", "180M", "180M")
    model = make(spec_of("Mamba2"), CPU, torch.bfloat16)
    monkeypatch.setattr(Prefiller, "replayed", property(lambda self: 3 if self.graph else 0))
    made, line = kernels.prefiller(model, case.mode, 2, 8)
    assert made.graph
    assert line.endswith("logits differ by 0.0e+00: accepted")
    whole = Prefiller._advance
    monkeypatch.setattr(Prefiller, "_advance", lambda self, *args: whole(self, *args) + (1.0 if self.graph else 0))
    made, line = kernels.prefiller(model, case.mode, 2, 8)
    assert not made.graph
    assert line.endswith("refused")

    def unable(self, model, batch, chunk, *, graph=None):
        if graph is None:
            raise RuntimeError("operation not permitted when stream is capturing\nmore")
        made_as_ever(self, model, batch, chunk, graph=graph)

    made_as_ever = Prefiller.__init__
    monkeypatch.setattr(Prefiller, "__init__", unable)
    made, line = kernels.prefiller(model, case.mode, 2, 8)
    assert not made.graph
    assert line.endswith("no graph (RuntimeError: operation not permitted when stream is capturing)")


@pytest.mark.usefixtures("small")
def test_several_sequences(tmp_path) -> None:
    contexts = {"180M": [13], "Amor-Mamba2": [15, 21]}
    inference.run(
        tmp_path, **SMALL | {"batches": [3], "gates": ["dial"], "models": ["Amor-Mamba2"], "contexts": contexts}
    )
    rows = json.loads((tmp_path / "inference.json").read_text())["rows"]
    text = (tmp_path / "inference.md").read_text()
    assert "**Several sequences, 180M" in text
    assert "| model | batch | 15 | 21 |" in text
    assert f"({3000 / rows[0]['decode_ms']:.0f}/s) |" in text
    assert rows[0]["chunk"] == 8 // 3
    for row in rows:
        assert row["batch"] == 3
        assert row["state_bytes"] == 3 * accounting.state_bytes(spec_of("Amor-Mamba2"), row["context"] + 12, 2)
        assert abs(row["decode_rate"] - 0.22) <= 1 / 10


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, torch.float32) for name in ("Transformer", "Mamba2", "Amor-Gated DeltaNet", "Oryx-TM")),
        ("Amor-Gated DeltaNet", torch.bfloat16),
    ],
)
def test_agreement_is_found_and_disagreement_too(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = Case(name, "130M" if "Oryx" in name else "180M", "180M", "linear" if "Oryx" in name else "attention")
    found = verify.compare(case, CPU, dtype, spec=spec_of(name))
    assert found.tokens == 65
    if dtype == torch.float32:
        assert found.agrees, found
    assert found.state_bytes == found.counted_bytes
    if name == "Mamba2" and dtype == torch.float32:
        from architectures.decoding import plain

        monkeypatch.setattr(plain, "convolve", lambda x, weight, bias, state, out, position, silu: out.copy_(x))
        assert not verify.compare(case, CPU, dtype, spec=spec_of(name)).agrees


def test_bounds_by_hand() -> None:
    """Amor-Mamba2 at 1.5B: D 2048, 24 layers, inner 4096, state 128, V 128256, K = 3 blocks."""
    routed, native = (published_spec(name, "1.5B") for name in ("Amor-Mamba2 + distilled router", "Amor-Mamba2"))
    d, context, rate = 2048, 8192, 0.25
    traffic = bound.decode_traffic(routed, context, firing_rate=rate)
    assert traffic.weights == 2 * (accounting.parameters(routed) - 0.75 * 3 * 2 * d * d)
    assert traffic.state == 24 * 2 * (2 * 4096 * 128 + 4 * (4096 + 256))
    assert traffic.cache == rate * 3 * 2 * d * context * 2
    head = bound.decode_traffic(native, context, firing_rate=rate).weights - 2 * (
        accounting.parameters(native) - 0.75 * 3 * 2 * d * d
    )
    assert head == 3 * 2 * 128256 * d
    four = bound.decode_traffic(routed, context, 4, firing_rate=rate)
    assert four.weights == 2 * accounting.parameters(routed)
    assert four.cache == 4 * traffic.cache
    mamba = published_spec("Mamba2", "1.5B")
    saved = context * accounting.forward_flops(mamba, context) - bound.prefill_flops(mamba, context)
    assert saved == pytest.approx((context - 1) * 2 * d * 128256)


def test_oryx_reads_no_cache_in_linear_mode() -> None:
    spec = published_spec("Oryx-TG", "1.4B")
    attention, linear = (bound.decode_traffic(spec, 8192, mode=mode) for mode in ("attention", "linear"))
    assert linear.cache == 0
    assert attention.cache == 24 * 2 * 2048 * 8192 * 2
    assert attention.weights == linear.weights == 2 * (accounting.parameters(spec) - 24 * 2048**2)


def test_published_numbers() -> None:
    assert published("Mamba2", "1.5B", 8192, "decode_ms") == 16.24
    assert published("Amor-Mamba2", "1.5B", 8192, "prefill_gb") == 13.06
    assert published("Amor-Gated DeltaNet + distilled router", "180M", 131072, "decode_ms") == 19.99
    assert published("Transformer", "1.5B", 131072, "prefill_s") is None
    assert published("Oryx-TM", "1.4B", 8192, "decode_ms") is None
    assert all(published("Mamba2", "440M", context, "prefill_s") for context in CONTEXTS)


def test_crossovers_are_the_papers_on_the_papers_numbers() -> None:
    rows = [
        {
            "scale": scale,
            "batch": 1,
            "gate": None,
            "model": case.label,
            "context": context,
            "decode_ms": published(case.name, scale, context, "decode_ms"),
        }
        for scale in ("180M", "440M", "1.5B")
        for case in cases(scale)
        for context in CONTEXTS
    ]
    found = {
        (one["scale"], one["rival"]): (one["last_slower"], one["first_faster"])
        for one in report.crossovers(rows)
        if one["model"] == "Amor-Mamba2 + distilled router"
    }
    assert all(found[scale, "Mamba2 Fused Hybrid"] == (8192, 16384) for scale in ("180M", "440M", "1.5B"))
    assert found["180M", "Mamba2 Serial Hybrid"] == (65536, 98304)
    assert found["440M", "Mamba2 Serial Hybrid"] == (16384, 32768)
    assert found["1.5B", "Mamba2 Serial Hybrid"] == (32768, 65536)


@pytest.mark.parametrize(
    ("dials", "word"),
    [
        ({"scales": ["2B"]}, "1.5B"),
        ({"models": ["Mamba3"]}, "Mamba3"),
        ({"gates": ["open"]}, "open"),
        ({"contexts": {"440M": [8]}, "verify": None}, "180M"),
    ],
)
def test_unknown_dials_are_named(tmp_path, dials, word) -> None:
    with pytest.raises(ValueError, match=word):
        inference.run(tmp_path, **{**SMALL, **dials})


def test_every_layer_kind_keeps_its_widths_in_the_judged_model() -> None:
    from probes.inference.kernels import one_of_each

    for case in cases("1.5B"):
        small = one_of_each(case.spec)
        assert small["d_model"] == case.spec["d_model"]
        if case.spec["kind"] != "oryx":
            assert set(small["layers"]) == set(case.spec["layers"])
    assert make(spec_of("Mamba2"), CPU, torch.float32).spec["vocab_size"] == V


@pytest.mark.parametrize("name", ["Mamba2", "Gated DeltaNet", "Oryx-TM", "Oryx-TG"])
@torch.no_grad()
def test_kernels_are_first_called_with_a_whole_chunk(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from architectures import kernels
    from probes.inference.kernels import approve, lengthened

    seen: dict[str, list[tuple[int, torch.Tensor]]] = {}
    whole = kernels.run

    def noted(operation, backend, *args):
        found = whole(operation, backend, *args)
        if args[0].dtype == torch.bfloat16 and args[0].shape[1] not in (1,):
            seen.setdefault(operation, []).append((args[0].shape[1], args))
        return found

    approve(spec_of(name), CPU, torch.bfloat16, chunk=1000)  # the judgement itself is unchanged on a CPU
    monkeypatch.setattr(kernels, "run", noted)
    approve(spec_of(name), CPU, torch.bfloat16)
    assert seen
    for operation, calls in seen.items():
        length, arguments = calls[0]
        longer = lengthened(arguments, 1000)
        assert longer[0].shape[1] >= 1000 > longer[0].shape[1] - length
        output, _ = whole(operation, "chunked", *longer)
        assert output.shape[1] == longer[0].shape[1]
        expected, _ = whole(operation, "chunked", *arguments)
        torch.testing.assert_close(output[:, :length], expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    ("dtype", "equal", "shortfall", "rounding", "state", "agrees"),
    [
        ("float32", 65, 0.0, 0.0, 8, True),
        ("float32", 64, 0.0, 0.0, 8, False),
        ("bfloat16", 60, 0.19, 0.1, 8, True),
        ("bfloat16", 60, 0.21, 0.1, 8, False),
        ("bfloat16", 65, 0.0, 0.1, 9, False),
    ],
)
def test_tokens_agree_as_far_as_rounding_goes(dtype, equal, shortfall, rounding, state, agrees) -> None:
    found = verify.Agreement("Mamba2", dtype, 65, equal, shortfall, rounding, [], state, 8)
    assert found.agrees is agrees
