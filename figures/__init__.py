"""One module per figure; each reads filters and recorded results, never torch."""

FIGURES: dict[str, str] = {
    "attention_fraction": "figures.attention_fraction",
    "break_even": "figures.break_even",
    "composite_map": "figures.composite_map",
    "copying_bound": "figures.copying_bound",
    "cost_frontier": "figures.cost_frontier",
    "decay_mistiming": "figures.decay_mistiming",
    "design_space": "figures.design_space",
    "discriminative_regime": "figures.discriminative_regime",
    "excess": "figures.excess",
    "fast_slow_layer": "figures.fast_slow_layer",
    "gate": "figures.gate",
    "gate_switch": "figures.gate_switch",
    "inference": "figures.inference",
    "length_robustness": "figures.length_robustness",
    "selection_inflation": "figures.selection_inflation",
    "switch": "figures.switch",
    "two_timescale_error": "figures.two_timescale_error",
    "window_crossover": "figures.window_crossover",
}
"""Figures by name. A module has `draw(out: Path, **dials) -> list[Path]`, its defaults in `DIALS`, a line on each dial
in `ABOUT`, and a first docstring line that says what it shows; it writes `NAME.png`, `NAME.svg` and `NAME.csv` into
`out`."""
