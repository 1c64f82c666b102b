"""What each restriction costs against the switching rate: windows and a mistimed decay above, no bigrams below."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from figures._filtering import ABOUT_STREAMS, STREAMS, excesses, positive
from figures.style import COLORS, GREY, MARKERS, PAGE, new, save, style
from filters.hmm import matched_rate

DIALS: dict[str, Any] = {
    "overlap": 0.4,
    "switch_rates": [0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2],
    "decay_switch_rate": 0.05,
    **STREAMS,
}
ABOUT: dict[str, str] = {
    "overlap": "how far the regimes differ: 0 not at all, 1 in every token",
    "switch_rates": "chances that the regime changes at a token",
    "decay_switch_rate": "the switching rate to which the fixed decay is matched",
    **ABOUT_STREAMS,
}


def draw(
    out: Path,
    *,
    overlap: float = 0.4,
    switch_rates: list[float] | None = None,
    decay_switch_rate: float = 0.05,
    sequences: int = 64,
    length: int = 1024,
    seed: int = 0,
) -> list[Path]:
    """Draws the excess of window 8, window 64 and the fixed decay in one panel, of the unigram in another.

    Lines are population values with two standard errors, crosses the book's single stream of 8192 tokens.
    Reference: State-space book, section 14.6 (two-timescale error).
    """
    rates = positive("switch_rates", DIALS["switch_rates"] if switch_rates is None else switch_rates, 0.75)
    positive("decay_switch_rate", decay_switch_rate, 0.75)
    decay = f"decay matched to {decay_switch_rate:g}"
    predictors = {
        "window 8": ("window", 8),
        "window 64": ("window", 64),
        decay: ("fixed_decay", matched_rate(decay_switch_rate, 4)),
        "unigram": ("unigram",),
    }
    measured = {"sequences": sequences, "length": length, "seed": seed}
    numbers = pd.concat([excesses(overlap, rate, predictors, **measured) for rate in rates], ignore_index=True)
    with style():
        figure = new(0.72 * PAGE, 3.6)
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[2.2, 1])
        for label, color, marker in zip(predictors, COLORS, MARKERS):
            part = numbers[numbers.predictor == label]
            axis = lower if label == "unigram" else upper
            axis.errorbar(
                part.switch_rate, part.excess, 2 * part.standard_error, color=color, marker=marker, label=label
            )
            axis.plot(part.switch_rate, part.book_draw, "x", color=color, alpha=0.7)
        upper.plot([], [], "x", color=GREY, label="the book's draw")
        upper.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
        lower.legend(loc="upper left")
        lower.set(xscale="log", xlabel="switching rate ε", ylim=(0, 1.35 * numbers.excess.max()))
        upper.set_ylim(bottom=min(0, 1.1 * numbers.book_draw.min()))
        figure.suptitle(f"overlap η = {overlap:g}", fontsize=9)
        figure.supylabel("excess over Bayes (nats/token)", fontsize=8)
        lower.set_xticks(rates, [f"{rate:g}" for rate in rates], minor=False)
        lower.minorticks_off()
        return save(figure, out, "two_timescale_error", numbers)
