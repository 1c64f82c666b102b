"""One module per figure; each reads filters and recorded results, never torch."""

FIGURES: dict[str, str] = {
    "attention_fraction": "figures.attention_fraction",
    "break_even": "figures.break_even",
    "copying_bound": "figures.copying_bound",
    "discriminative_regime": "figures.discriminative_regime",
    "excess": "figures.excess",
    "gate": "figures.gate",
    "gate_switch": "figures.gate_switch",
    "length_robustness": "figures.length_robustness",
    "selection_inflation": "figures.selection_inflation",
    "switch": "figures.switch",
}
"""Figures by name. A module has `draw(out: Path, **dials) -> list[Path]`, its defaults in `DIALS`, and a first
docstring line that says what it shows; it writes `NAME.png`, `NAME.svg` and `NAME.csv` into `out`."""
