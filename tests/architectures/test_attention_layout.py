"""Queries are laid out as the gradient of attention's output comes, where a GPU trains."""

import pytest
import torch
from torch.nn import functional

from architectures.kernels.softmax import scaled_dot_product
from architectures.mixers import attention
from architectures.mixers.attention import token_by_token


def test_queries_lie_token_by_token_with_their_values():
    q = torch.randn(2, 3, 5, 4)
    laid = token_by_token(q)
    assert torch.equal(laid, q)
    assert laid.stride() == (5 * 3 * 4, 4, 3 * 4, 1)
    assert token_by_token(laid).data_ptr() == laid.data_ptr()


def test_the_gradient_of_an_output_put_together_again_lies_as_the_queries():
    q, k, v = (torch.randn(2, 3, 5, 4, requires_grad=True) for _ in range(3))
    laid, seen = token_by_token(q), []
    output = functional.scaled_dot_product_attention(laid, k, v, is_causal=True)
    output.register_hook(lambda gradient: seen.append(gradient.stride()))
    together = output.transpose(1, 2).flatten(2)
    (together @ torch.randn(12, 12)).square().sum().backward()
    assert seen == [laid.stride()]


def transposed(x):
    return x.transpose(1, 2).contiguous().transpose(1, 2)


@pytest.mark.parametrize("queries", [torch.Tensor.contiguous, transposed])
@pytest.mark.parametrize("gradient", [torch.Tensor.contiguous, transposed, lambda x: x[:1, :1].expand(2, 3, -1, -1)])
def test_a_kernel_gets_its_gradient_as_its_output_lies(queries, gradient, monkeypatch):
    q, k, v, given = (torch.randn(2, 3, 5, 4, dtype=torch.float64) for _ in range(4))
    leaves = [x.requires_grad_() for x in (queries(q), k, v)]
    given = gradient(given)
    expected = torch.autograd.grad(functional.scaled_dot_product_attention(*leaves, is_causal=True), leaves, given)
    outputs, seen = [], []

    def attention(*args, **kwargs):
        output = sdpa(*args, **kwargs)
        output.register_hook(lambda x: seen.append(x.stride()))
        outputs.append(output.stride())
        return output

    sdpa = functional.scaled_dot_product_attention
    monkeypatch.setattr(functional, "scaled_dot_product_attention", attention)
    found = torch.autograd.grad(scaled_dot_product(*leaves, is_causal=True), leaves, given)
    assert seen == outputs
    torch.testing.assert_close(found, expected)


class OnAGPU(torch.Tensor):
    """Says that it lies on a GPU."""

    is_cuda = True


def test_queries_are_laid_out_where_a_gpu_trains_and_nowhere_else(monkeypatch):
    laid = []
    monkeypatch.setattr(attention, "token_by_token", lambda q: (laid.append(q.shape), token_by_token(q))[1])
    q = torch.randn(2, 3, 5, 4)
    expected = attention.attend(q, q, q)
    assert not laid
    pretended = attention.attend(q.as_subclass(OnAGPU), q, q)
    assert laid == [q.shape]
    torch.testing.assert_close(pretended.as_subclass(torch.Tensor), expected)
    with torch.no_grad():
        attention.attend(q.as_subclass(OnAGPU), q, q)
    assert len(laid) == 1
