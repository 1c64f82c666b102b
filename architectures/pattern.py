"""Layer patterns: `"[gdn*3, attention]*2"` is three gated delta layers and an attention layer, twice.

Grammar: a pattern is a comma-separated list of items; an item is a layer's name or a bracketed pattern, with an
optional `*n`. A name is anything without `, [ ] *`, so `mixer:package.module:Name` and `fla:Name` are names too.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from .errors import SpecError

_TOKEN = re.compile(r"\s*([\[\],*]|[^\[\],*]+)")
MAX_LAYERS = 1024


def expand(pattern: str | Sequence[Any], key: str = "layers") -> list[str]:
    """The layers' names in order. A list may hold patterns itself.

    Raises `SpecError` when the pattern cannot be read, is empty, or has more than 1024 layers.
    """
    if isinstance(pattern, str):
        names = _Parser(pattern, key).parse()
    elif isinstance(pattern, Sequence):
        names = [name for item in pattern for name in expand(item, key)]
    else:
        raise SpecError(f"{key}: {pattern!r} is not a pattern; write for instance '[gdn*3, attention]*2'")
    if not names:
        raise SpecError(f"{key}: no layer in {pattern!r}; write for instance '[gdn*3, attention]*2'")
    if len(names) > MAX_LAYERS:
        raise SpecError(f"{key}: {len(names)} layers; nearest: {MAX_LAYERS}")
    return names


class _Parser:
    def __init__(self, text: str, key: str) -> None:
        self.text, self.key = text, key
        self.tokens = [token for token in (match.strip() for match in _TOKEN.findall(text)) if token]
        self.at = 0

    def fail(self, why: str) -> SpecError:
        return SpecError(f"{self.key}: {why} in {self.text!r}; write for instance '[gdn*3, attention]*2'")

    def peek(self) -> str | None:
        return self.tokens[self.at] if self.at < len(self.tokens) else None

    def take(self) -> str:
        token = self.peek()
        if token is None:
            raise self.fail("unexpected end")
        self.at += 1
        return token

    def parse(self) -> list[str]:
        names = self.items()
        if self.peek() is not None:
            raise self.fail(f"unexpected {self.peek()!r}")
        return names

    def items(self) -> list[str]:
        names = self.item()
        while self.peek() == ",":
            self.take()
            if self.peek() in (None, "]"):
                break
            names += self.item()
        return names

    def item(self) -> list[str]:
        token = self.take()
        if token == "[":
            names = self.items()
            if self.take() != "]":
                raise self.fail("a bracket is not closed")
        elif token in ("]", ",", "*"):
            raise self.fail(f"unexpected {token!r}")
        else:
            names = [token]
        if self.peek() == "*":
            self.take()
            count = self.take()
            if not count.isdecimal() or int(count) < 1 or int(count) > MAX_LAYERS:
                raise self.fail(f"{count!r} is not a repetition count of 1 to {MAX_LAYERS}")
            names = names * int(count)
            if len(names) > MAX_LAYERS:
                raise self.fail(f"more than {MAX_LAYERS} layers")
        return names
