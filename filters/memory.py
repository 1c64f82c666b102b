"""Results whose memory serves again once nobody holds them: fresh pages can cost more than filtering.

An operating system hands out memory in pages that it clears at their first use, and a result of ten megabytes is 2560
of them. Allocators give so much back at once, and the next call has them cleared again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Store:
    """At most `most` spare things, each with what it is good for; the one that lay longest goes first."""

    def __init__(self, most: int) -> None:
        self._spare: deque[tuple[Hashable, Any]] = deque(maxlen=most)

    def take(self, kind: Hashable, make: Callable[[], Any]) -> Any:
        """A spare one of this kind, or a new one; safe from several threads, as single steps of a deque are."""
        for _ in range(len(self._spare)):
            try:
                other, thing = self._spare.popleft()
            except IndexError:
                break
            if other == kind:
                return thing
            self._spare.append((other, thing))
        return make()

    def give(self, kind: Hashable, thing: Any) -> None:
        """Keeps `thing` for the next `take` of this kind."""
        self._spare.append((kind, thing))


class _Lease:
    """What the views of a lent array hold on to."""

    def __init__(self, array: NDArray[Any], returned: Callable[[], None]) -> None:
        self.__array_interface__ = array.__array_interface__
        self._array: NDArray[Any] | None = array
        self._returned = returned

    def __del__(self) -> None:
        self._array = None
        self._returned()


def lent(array: NDArray[Any], returned: Callable[[], None]) -> NDArray[Any]:
    """A view of `array`; `returned()` is called once it and all views of it are gone, from whichever thread that is."""
    return np.asarray(_Lease(array, returned))
