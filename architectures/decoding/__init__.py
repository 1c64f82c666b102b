"""Fast inference: prefill in chunks, and decoding one token at a time over caches that exist already."""

from __future__ import annotations

from .decoder import Decoder
from .dial import Dialled, even_pattern
from .prefill import prefill
from .prefiller import Prefiller

__all__ = ["Decoder", "Dialled", "Prefiller", "even_pattern", "prefill"]
