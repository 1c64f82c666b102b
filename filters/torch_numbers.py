"""The two kinds of non-negative numbers that the torch filters compute with, behind the same operations.

`Linear` is a plain tensor, rescaled as it goes. `Wide` has an exponent per entry (`filters.wide`, in torch). Shapes: a
vector of regime weights is `(..., K)`, a product of steps `(..., K, K)`; a step from one token to the next is
`table * likelihood`, row i to column j.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from filters.wide import EXPONENT_OF_ZERO
from filters.wide import Wide as NumpyWide


@dataclass(frozen=True, eq=False)
class Linear:
    """Plain floating point; only ratios within one vector or one matrix have a meaning."""

    value: Tensor

    @staticmethod
    def of(numbers: NumpyWide, like: Tensor) -> Linear:
        """From NumPy, on the device and of the type of `like`."""
        return Linear(torch.as_tensor(numbers.float()).to(like))

    @staticmethod
    def stack(steps: Sequence[Linear], dim: int) -> Linear:
        """Stacks along a new dimension."""
        return Linear(torch.stack([step.value for step in steps], dim))

    @staticmethod
    def cat(parts: Sequence[Linear], dim: int) -> Linear:
        """Joins along a dimension."""
        return Linear(torch.cat([part.value for part in parts], dim))

    def map(self, change: Callable[[Tensor], Tensor]) -> Linear:
        """With `change`, which rearranges entries, applied to what it is made of."""
        return Linear(change(self.value))

    def __getitem__(self, index: Any) -> Linear:
        return Linear(self.value[index])

    def after(self, table: Linear) -> Linear:
        """`x @ table` over the last dimension; `table` `(K, K)`."""
        return Linear(self.value @ table.value)

    def before(self, table: Linear) -> Linear:
        """`table @ x` over the last dimension but one."""
        return Linear(table.value @ self.value)

    def times(self, other: Linear) -> Linear:
        """The product entry by entry, broadcast."""
        return Linear(self.value * other.value)

    def through(self, product: Linear) -> Linear:
        """`v @ product` for vectors `(..., K)` and products `(..., K, K)`."""
        return Linear((self.value[..., :, None] * product.value).sum(-2))

    def tamed(self, dims: int) -> Linear:
        """Rescaled over the last `dims` dimensions, so that nothing underflows later."""
        scale = self.value.sum(dim=tuple(range(-dims, 0)), keepdim=True)
        return Linear(self.value / scale)

    def total(self) -> Linear:
        """The sum over the last dimension."""
        return Linear(self.value.sum(-1))

    def divided(self, total: Linear) -> Linear:
        """The vectors divided by `total` `(...)`; 0 / 0 is 0."""
        divisor = total.value[..., None]
        return Linear(self.value / torch.where(divisor == 0, 1.0, divisor))

    def log(self) -> Tensor:
        """The natural logarithm."""
        return self.value.log()

    def float(self) -> Tensor:
        """As a tensor."""
        return self.value


@dataclass(frozen=True, eq=False)
class Wide:
    """`mantissa * 2**exponent`: float64 in [0.5, 1) or 0, and int64."""

    mantissa: Tensor
    exponent: Tensor

    @staticmethod
    def of(numbers: NumpyWide, like: Tensor) -> Wide:
        """From NumPy, on the device of `like`."""
        return Wide(
            torch.as_tensor(numbers.mantissa, device=like.device), torch.as_tensor(numbers.exponent, device=like.device)
        )

    @staticmethod
    def stack(steps: Sequence[Wide], dim: int) -> Wide:
        """Stacks along a new dimension."""
        return Wide(torch.stack([s.mantissa for s in steps], dim), torch.stack([s.exponent for s in steps], dim))

    @staticmethod
    def cat(parts: Sequence[Wide], dim: int) -> Wide:
        """Joins along a dimension."""
        return Wide(torch.cat([p.mantissa for p in parts], dim), torch.cat([p.exponent for p in parts], dim))

    @staticmethod
    def wider(numbers: Linear) -> Wide:
        """From plain numbers."""
        return _normal(numbers.value.double(), torch.zeros_like(numbers.value, dtype=torch.int64))

    def map(self, change: Callable[[Tensor], Tensor]) -> Wide:
        """With `change`, which rearranges entries, applied to what it is made of."""
        return Wide(change(self.mantissa), change(self.exponent))

    def __getitem__(self, index: Any) -> Wide:
        return Wide(self.mantissa[index], self.exponent[index])

    def after(self, table: Wide) -> Wide:
        """`x @ table` over the last dimension; `table` `(K, K)`."""
        return self[..., :, None].times(table)._sum(-2)

    def before(self, table: Wide) -> Wide:
        """`table @ x` over the last dimension but one."""
        return table[:, :, None].times(self[..., None, :, :])._sum(-2)

    def times(self, other: Wide) -> Wide:
        """The product entry by entry, broadcast."""
        return _normal(self.mantissa * other.mantissa, self.exponent + other.exponent)

    def through(self, product: Wide) -> Wide:
        """`v @ product` for vectors `(..., K)` and products `(..., K, K)`."""
        return self[..., :, None].times(product)._sum(-2)

    def tamed(self, dims: int) -> Wide:
        """Itself: the exponents take care of the range."""
        return self

    def total(self) -> Wide:
        """The sum over the last dimension."""
        return self._sum(-1)

    def divided(self, total: Wide) -> Wide:
        """The vectors divided by `total` `(...)`; 0 / 0 is 0."""
        divisor = torch.where(total.mantissa == 0, 1.0, total.mantissa)[..., None]
        return _normal(self.mantissa / divisor, self.exponent - total.exponent[..., None])

    def log(self) -> Tensor:
        """The natural logarithm, -inf for 0."""
        logs = self.mantissa.log() + self.exponent * torch.log(torch.tensor(2.0, dtype=torch.float64))
        return torch.where(self.mantissa == 0, -torch.inf, logs)

    def float(self) -> Tensor:
        """As float64; what is below 2**-1022 becomes 0."""
        return self.mantissa * _power_of_two(self.exponent)

    def _sum(self, dim: int) -> Wide:
        top = self.exponent.amax(dim, keepdim=True)
        total = (self.mantissa * _power_of_two(self.exponent - top)).sum(dim)
        return _normal(total, top.squeeze(dim))


def _normal(mantissa: Tensor, exponent: Tensor) -> Wide:
    fraction, shift = torch.frexp(mantissa)
    return Wide(fraction, torch.where(fraction == 0, EXPONENT_OF_ZERO, exponent + shift.long()))


def _power_of_two(exponent: Tensor) -> Tensor:
    """`2**exponent` for exponents below 1024, exact, made of its bits; 0 below -1022. `torch.ldexp` takes a pow."""
    bits = (exponent.clamp(min=-1023) + 1023) << 52
    return bits.view(torch.float64)
