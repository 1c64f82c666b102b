"""AMOR's measurements of inference on one H100 PCIe, to be set beside the project's own; never used for anything else.

Prefill latency (s), peak prefill memory (GB) and decode latency (ms a token) at 8K, 16K, 32K, 64K, 96K and 128K tokens
of context, batch 1, bf16; `-` where memory ran out.

Source: Zheng & Shani, AMOR, arXiv 2602.13215, tables 11 (1.5B), 12 (180M) and 13 (440M).
"""

from __future__ import annotations

CONTEXTS = (8192, 16384, 32768, 65536, 98304, 131072)
QUANTITIES = ("prefill_s", "prefill_gb", "decode_ms")

_TABLES = {
    "180M": """
prefill_s: Transformer: 0.03 0.08 0.25 0.90 1.94 3.48
prefill_s: Mamba2: 0.03 0.04 0.07 0.14 0.21 0.28
prefill_s: Gated DeltaNet: 0.03 0.04 0.07 0.13 0.19 0.25
prefill_s: Mamba2 Serial Hybrid: 0.03 0.05 0.11 0.27 0.51 0.81
prefill_s: Gated DeltaNet Serial Hybrid: 0.02 0.04 0.10 0.26 0.49 0.80
prefill_s: Mamba2 Fused Hybrid: 0.03 0.06 0.14 0.37 0.70 1.16
prefill_s: Amor-Mamba2: 0.14 0.27 0.55 1.20 1.96 2.84
prefill_s: Amor-Mamba2 + distilled router: 0.03 0.06 0.14 0.38 0.72 1.17
prefill_s: Amor-Gated DeltaNet: 0.14 0.26 0.54 1.19 1.94 2.80
prefill_s: Amor-Gated DeltaNet + distilled router: 0.03 0.06 0.13 0.36 0.70 1.14
prefill_gb: Transformer: 0.84 1.29 2.19 3.99 5.79 7.59
prefill_gb: Mamba2: 0.71 1.02 1.64 2.89 4.13 5.37
prefill_gb: Gated DeltaNet: 0.59 0.79 1.20 2.01 2.82 3.63
prefill_gb: Mamba2 Serial Hybrid: 0.83 1.23 2.03 3.62 5.22 6.81
prefill_gb: Gated DeltaNet Serial Hybrid: 0.70 0.98 1.53 2.65 3.76 4.87
prefill_gb: Mamba2 Fused Hybrid: 0.92 1.39 2.34 4.24 6.14 8.03
prefill_gb: Amor-Mamba2: 10.11 10.25 10.53 11.08 11.64 12.19
prefill_gb: Amor-Mamba2 + distilled router: 0.83 1.14 1.77 3.01 4.25 5.50
prefill_gb: Amor-Gated DeltaNet: 10.12 10.27 10.57 11.18 11.78 12.39
prefill_gb: Amor-Gated DeltaNet + distilled router: 0.74 0.97 1.42 2.33 3.23 4.14
decode_ms: Transformer: 7.13 12.40 22.50 42.83 62.50 80.44
decode_ms: Mamba2: 8.08 8.17 8.09 8.11 8.14 8.10
decode_ms: Gated DeltaNet: 11.63 11.59 11.55 11.62 11.57 11.59
decode_ms: Mamba2 Serial Hybrid: 8.05 8.97 10.75 14.25 17.70 21.19
decode_ms: Gated DeltaNet Serial Hybrid: 10.53 10.52 10.51 10.53 12.54 15.97
decode_ms: Mamba2 Fused Hybrid: 9.68 11.10 13.70 19.00 24.20 29.02
decode_ms: Amor-Mamba2: 10.50 10.55 12.65 14.43 20.38 21.85
decode_ms: Amor-Mamba2 + distilled router: 10.19 10.14 11.89 15.22 16.80 18.16
decode_ms: Amor-Gated DeltaNet: 13.97 13.94 15.15 16.52 18.82 19.98
decode_ms: Amor-Gated DeltaNet + distilled router: 13.73 13.88 15.88 16.41 17.87 19.99
""",
    "440M": """
prefill_s: Transformer: 0.07 0.21 0.70 2.52 5.49 9.56
prefill_s: Mamba2: 0.07 0.11 0.20 0.45 0.60 0.80
prefill_s: Gated DeltaNet: 0.05 0.09 0.17 0.34 0.51 0.68
prefill_s: Mamba2 Serial Hybrid: 0.06 0.12 0.26 0.66 1.21 1.88
prefill_s: Gated DeltaNet Serial Hybrid: 0.05 0.11 0.24 0.61 1.13 1.78
prefill_s: Mamba2 Fused Hybrid: 0.10 0.18 0.38 0.90 1.55 2.35
prefill_s: Amor-Mamba2: 0.18 0.35 0.71 1.56 2.56 3.68
prefill_s: Amor-Mamba2 + distilled router: 0.07 0.13 0.29 0.71 1.29 1.99
prefill_s: Amor-Gated DeltaNet: 0.16 0.33 0.68 1.51 2.48 3.58
prefill_s: Amor-Gated DeltaNet + distilled router: 0.06 0.12 0.26 0.65 1.20 1.88
prefill_gb: Transformer: 1.85 2.87 4.91 9.00 13.08 17.16
prefill_gb: Mamba2: 1.36 1.77 2.59 4.24 5.89 7.53
prefill_gb: Gated DeltaNet: 1.19 1.46 2.00 3.08 4.16 5.24
prefill_gb: Mamba2 Serial Hybrid: 1.52 2.09 3.21 5.46 7.71 9.96
prefill_gb: Gated DeltaNet Serial Hybrid: 1.34 1.74 2.55 4.17 5.79 7.41
prefill_gb: Mamba2 Fused Hybrid: 1.60 2.23 3.49 6.01 8.53 11.05
prefill_gb: Amor-Mamba2: 10.71 10.89 11.26 12.00 12.74 13.48
prefill_gb: Amor-Mamba2 + distilled router: 1.49 1.90 2.72 4.37 6.02 7.66
prefill_gb: Amor-Gated DeltaNet: 10.71 10.91 11.31 12.12 12.93 13.73
prefill_gb: Amor-Gated DeltaNet + distilled router: 1.36 1.66 2.26 3.47 4.68 5.89
decode_ms: Transformer: 14.87 25.63 46.99 89.82 132.80 175.66
decode_ms: Mamba2: 16.07 16.08 16.16 16.17 16.17 16.16
decode_ms: Gated DeltaNet: 22.53 22.61 22.51 22.51 22.46 22.44
decode_ms: Mamba2 Serial Hybrid: 15.88 17.35 20.16 25.38 31.03 36.49
decode_ms: Gated DeltaNet Serial Hybrid: 21.34 21.47 21.46 21.51 21.58 25.80
decode_ms: Mamba2 Fused Hybrid: 17.42 18.87 21.64 27.11 32.50 37.99
decode_ms: Amor-Mamba2: 18.33 18.03 19.12 25.98 22.85 27.10
decode_ms: Amor-Mamba2 + distilled router: 17.98 17.69 18.61 25.15 21.37 26.62
decode_ms: Amor-Gated DeltaNet: 24.65 24.87 27.33 28.43 30.62 37.13
decode_ms: Amor-Gated DeltaNet + distilled router: 24.68 24.96 26.57 28.76 30.46 36.97
""",
    "1.5B": """
prefill_s: Transformer: 0.15 0.44 1.41 4.99 10.83 -
prefill_s: Mamba2: 0.13 0.24 0.48 0.95 1.43 1.92
prefill_s: Gated DeltaNet: 0.11 0.20 0.40 0.80 1.21 1.61
prefill_s: Mamba2 Serial Hybrid: 0.13 0.27 0.61 1.49 2.69 4.17
prefill_s: Gated DeltaNet Serial Hybrid: 0.11 0.24 0.54 1.37 2.49 3.89
prefill_s: Mamba2 Fused Hybrid: 0.24 0.48 1.03 2.37 3.99 5.77
prefill_s: Amor-Mamba2: 0.26 0.53 1.13 2.53 4.27 6.30
prefill_s: Amor-Mamba2 + distilled router: 0.14 0.29 0.66 1.58 2.85 4.40
prefill_s: Amor-Gated DeltaNet: 0.24 0.49 1.05 2.40 4.03 5.96
prefill_s: Amor-Gated DeltaNet + distilled router: 0.12 0.26 0.58 1.43 2.58 4.01
prefill_gb: Transformer: 4.75 6.80 10.89 19.08 27.27 -
prefill_gb: Mamba2: 3.85 4.67 6.30 9.55 12.81 16.07
prefill_gb: Gated DeltaNet: 3.54 4.08 5.16 7.32 9.49 11.65
prefill_gb: Mamba2 Serial Hybrid: 4.13 5.25 7.48 11.95 16.42 20.88
prefill_gb: Gated DeltaNet Serial Hybrid: 3.79 4.60 6.22 9.45 12.69 15.92
prefill_gb: Mamba2 Fused Hybrid: 4.36 5.61 8.11 13.12 18.12 23.12
prefill_gb: Amor-Mamba2: 13.06 13.43 14.17 15.65 17.12 18.60
prefill_gb: Amor-Mamba2 + distilled router: 4.06 4.88 6.51 9.77 13.03 16.29
prefill_gb: Amor-Gated DeltaNet: 13.06 13.46 14.27 15.88 17.49 19.10
prefill_gb: Amor-Gated DeltaNet + distilled router: 3.82 4.42 5.63 8.05 10.46 12.88
decode_ms: Transformer: 17.36 29.37 53.28 100.75 148.61 -
decode_ms: Mamba2: 16.24 16.26 16.13 16.14 16.12 16.15
decode_ms: Gated DeltaNet: 22.57 22.76 22.63 22.56 22.59 22.45
decode_ms: Mamba2 Serial Hybrid: 16.58 18.12 21.21 27.30 33.35 39.42
decode_ms: Gated DeltaNet Serial Hybrid: 21.13 21.03 21.01 20.95 23.99 29.98
decode_ms: Mamba2 Fused Hybrid: 18.19 19.78 22.80 28.92 34.97 41.07
decode_ms: Amor-Mamba2: 19.22 19.48 22.67 26.81 32.00 34.21
decode_ms: Amor-Mamba2 + distilled router: 18.82 18.90 22.11 26.32 31.27 33.73
decode_ms: Amor-Gated DeltaNet: 25.94 26.10 27.53 31.90 37.57 42.08
decode_ms: Amor-Gated DeltaNet + distilled router: 25.07 25.34 27.08 31.26 36.46 41.57
""",
}


THROUGHPUT = {
    "Transformer": 102.0,
    "Mamba2": 63.8,
    "Gated DeltaNet": 44.6,
    "Mamba2 Serial Hybrid": 64.5,
    "Gated DeltaNet Serial Hybrid": 48.6,
    "Mamba2 Fused Hybrid": 60.1,
    "Amor-Mamba2": 57.8,
    "Amor-Mamba2 + distilled router": 58.3,
    "Amor-Gated DeltaNet": 41.7,
    "Amor-Gated DeltaNet + distilled router": 41.9,
}
"""Tokens a second, greedy, 1.5B, after about 3K tokens, on one H100 NVL: AMOR's table 10."""


def published(model: str, scale: str, context: int, quantity: str) -> float | None:
    """The paper's number; None where it has none, or ran out of memory."""
    if scale not in _TABLES or context not in CONTEXTS:
        return None
    for line in _TABLES[scale].strip().splitlines():
        found, name, numbers = (part.strip() for part in line.split(":"))
        if (found, name) == (quantity, model):
            number = numbers.split()[CONTEXTS.index(context)]
            return None if number == "-" else float(number)
    return None
