"""The canary lets a right kernel through and refuses a wrong one with its numbers."""

import math

import pytest
import torch
from wrong_kernels import with_gradient

from architectures import SpecError, build, kernels
from architectures.kernels import canary

SPEC = {
    "layers": "gdn, mamba2, attention, sliding, ema",
    "d_model": 16,
    "vocab_size": 8,
    "mixers": {"sliding": {"window": 3}},
}


@pytest.fixture(autouse=True)
def forgotten():
    canary.forget()
    yield
    canary.forget()


def recorded(dtype, length):
    with canary.record() as calls, torch.no_grad(), torch.autocast("cpu", dtype=dtype, enabled=dtype is not None):
        build(SPEC)(torch.randint(8, (3, length)))
    return list(calls.values())


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("length", [1, 33])
def test_the_forms_in_torch_are_accepted(dtype, length):
    torch.manual_seed(0)
    calls = recorded(dtype, length)
    assert {call.operation for call in calls} == {"gated_delta", "ssd", "short_conv_silu", "attention", "scan"}
    verdicts = canary.approve(calls)
    assert all(verdict.accepted for verdict in verdicts), [verdict.line() for verdict in verdicts]
    assert all(verdict.output_error < 1e-2 and verdict.gradient_error < 1e-2 for verdict in verdicts)


def test_nothing_is_recorded_outside_the_block():
    recorded(None, 4)
    assert not kernels.listeners


def wrong_output(q, k, v, beta, g=None, initial=None):
    output, state = kernels.load("gated_delta", "plain")(q, k, v, beta, g, initial)
    return output * 1.1, state


def wrong_gradient(q, k, v, beta, g=None, initial=None):
    return kernels.load("gated_delta", "plain")(q, k, v, with_gradient(beta, lambda grad: 0.9 * grad), g, initial)


def wrong_for_strides(q, k, v, beta, g=None, initial=None):
    output, state = kernels.load("gated_delta", "plain")(q, k, v, beta, g, initial)
    return with_gradient(output, lambda grad: grad if grad.is_contiguous() else -grad), state


def broken(q, k, v, beta, g=None, initial=None):
    raise RuntimeError("not on this machine")


@pytest.mark.parametrize(
    ("function", "output", "gradient", "worst"),
    [
        (wrong_output, 0.1, 0.1, None),
        (wrong_gradient, 0.0, 0.1, 3),
        (wrong_for_strides, 0.0, 2.0, None),
        (broken, math.inf, math.inf, -1),
    ],
)
def test_a_wrong_kernel_is_refused_and_the_next_one_used(monkeypatch, function, output, gradient, worst):
    torch.manual_seed(0)
    calls = [call for call in recorded(torch.bfloat16, 17) if call.operation == "gated_delta"]
    backends = {"wrong": kernels.Backend("nowhere:nothing"), **kernels.OPERATIONS["gated_delta"]}
    monkeypatch.setitem(kernels.OPERATIONS, "gated_delta", backends)
    monkeypatch.setitem(kernels._functions, "nowhere:nothing", function)
    refused, accepted = canary.approve(calls)
    assert (refused.backend, refused.accepted) == ("wrong", False)
    assert refused.output_error == pytest.approx(output, abs=1e-2)
    assert refused.gradient_error == pytest.approx(gradient, abs=1e-2)
    assert worst is None or refused.worst_argument == worst
    assert accepted.backend == "chunked"
    assert accepted.accepted
    assert "refused" in refused.line()
    # once refused, it is not tried again at another shape
    again = canary.approve(calls)
    assert [verdict.backend for verdict in again] == ["chunked"]


def test_a_kernel_that_is_wrong_in_one_run_of_several_is_refused(monkeypatch):
    torch.manual_seed(0)
    calls = [call for call in recorded(torch.bfloat16, 17) if call.operation == "gated_delta"]
    runs = []

    def wrong_once(*arguments):
        runs.append(None)
        return (wrong_output if len(runs) == 1 else kernels.load("gated_delta", "plain"))(*arguments)

    monkeypatch.setitem(kernels.OPERATIONS["gated_delta"], "wrong", kernels.Backend("nowhere:nothing"))
    monkeypatch.setitem(kernels._functions, "nowhere:nothing", wrong_once)
    verdict = canary.judge(calls[0], "wrong")
    assert len(runs) > 1
    assert not verdict.accepted
    assert verdict.output_error == pytest.approx(0.1, abs=1e-2)


def test_a_kernel_that_is_named_is_judged_alone_and_not_run_once_refused(monkeypatch):
    torch.manual_seed(0)
    calls = [call for call in recorded(torch.bfloat16, 17) if call.operation == "gated_delta"]
    backends = {**kernels.OPERATIONS["gated_delta"], "wrong": kernels.Backend("nowhere:nothing")}
    monkeypatch.setitem(kernels.OPERATIONS, "gated_delta", backends)
    monkeypatch.setitem(kernels._functions, "nowhere:nothing", wrong_output)
    chosen = {"gated_delta": "wrong"}
    assert [v.backend for v in canary.approve(calls, {"ssd": "plain"})] == ["chunked"]
    assert canary.approve(calls, "plain") == []
    assert kernels.choose("gated_delta", chosen, "cpu") == "wrong"
    (verdict,) = canary.approve(calls, chosen)
    assert (verdict.backend, verdict.accepted) == ("wrong", False)
    with pytest.raises(SpecError, match=r"kernels\.gated_delta: 'wrong': .* output 1\.0e-01.*refused"):
        kernels.choose("gated_delta", chosen, "cpu")
    with pytest.raises(SpecError, match="refused"):
        canary.settle(lambda: kernels.call("gated_delta", chosen, {}, *calls[0].arguments), chosen)
    canary.forget()
    assert kernels.choose("gated_delta", chosen, "cpu") == "wrong"


def test_attention_is_compared_with_its_definition():
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 9, 4, dtype=torch.float64) for _ in range(3))
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(canary.attention(q, k, v, is_causal=True), expected)
    mask = torch.ones(9, 9, dtype=torch.bool).tril()
    torch.testing.assert_close(canary.attention(q, k, v, mask), expected)


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[..., 2:5],
        lambda x: x.transpose(1, 2),
        lambda x: x[:1],
        lambda x: x[:, :1].expand(-1, 9, -1),
        lambda x: x.unfold(1, 4, 1),
        lambda x: x[:0],
        lambda x: x[0, 0, 0],
    ],
)
def test_copies_keep_values_and_the_layout_that_can_be_kept(view):
    x = view(torch.arange(3 * 7 * 6.0).reshape(3, 7, 6))
    copy = canary._copy(x)
    assert torch.equal(copy, x)
    assert copy.untyped_storage().data_ptr() != x.untyped_storage().data_ptr() or not x.numel()
    shared = x.ndim and (0 in x.stride() or x.ndim == 4)
    assert shared or copy.stride() == x.stride()
    assert canary._copy(x, torch.float64).dtype == torch.float64


def test_what_a_model_does_once_kernels_are_chosen_is_judged_too():
    """As where a convolution that was let through lays its output out in another way."""
    x = torch.randn(3, 2, 5, 4)
    layouts = [x, x.transpose(1, 2).contiguous().transpose(1, 2)]
    rounds = []

    def run():
        rounds.append(len(rounds))
        y = layouts[min(len(rounds) - 1, 1)]
        torch.nn.functional.scaled_dot_product_attention(y, y, y, is_causal=True)

    verdicts = canary.settle(run)
    assert len(rounds) == 3
    assert [verdict.accepted for verdict in verdicts] == [True, True]
    once = canary.settle(lambda: torch.nn.functional.scaled_dot_product_attention(x, x, x))
    assert len(once) == 1


def test_compiled_code_is_cached_apart_by_the_attention_kernels_that_are_on(monkeypatch):
    monkeypatch.setattr(canary, "_TAG", "mine")
    tags = []
    with torch.compiler.config.patch(cache_key_tag=""):
        for cudnn in (True, False):
            monkeypatch.setitem(canary._ENABLED, "cudnn", lambda cudnn=cudnn: cudnn)
            canary.tag_caches()
            tags.append(torch.compiler.config.cache_key_tag)
    assert [tag.startswith("mine ") and "flash" in tag for tag in tags] == [True, True]
    assert ["cudnn" in tag for tag in tags] == [True, False]


def test_the_forms_in_torch_are_those_of_every_operation_and_of_attention():
    kernels.approve("ssd", "mamba_ssm")
    before = torch.backends.cuda.flash_sdp_enabled()
    with kernels.torch_forms():
        assert kernels.choose("ssd", "mamba_ssm", "cuda") == "chunked"
        assert not torch.backends.cuda.flash_sdp_enabled()
        assert torch.backends.cuda.math_sdp_enabled()
    assert torch.backends.cuda.flash_sdp_enabled() == before
    assert kernels.choose("ssd", "auto", "cuda") == "mamba_ssm"
