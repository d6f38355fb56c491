"""Text can be read on every ground that the pages put it on, in both themes: WCAG 2.2 AA, from the design tokens."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

STYLE = Path(__file__).parents[3] / "api/pages/static/style.css"
LEAST, LEAST_OF_SHAPES = 4.5, 3.0
"""Contrast of text (success criterion 1.4.3), and of what is drawn (1.4.11)."""
GROUNDS = ("ground", "card", "sunk")
PAIRS = [
    *((text, ground) for text in ("text", "dim", "accent", "bad") for ground in GROUNDS),
    ("on-accent", "accent"),
    ("text", "neutral-soft"),
    ("dim", "neutral-soft"),
    ("accent", "busy-soft"),
    ("card", "good"),
    *((kind, f"{kind}-soft") for kind in ("good", "bad", "warn", "busy")),
    *((kind, ground) for kind in ("good", "warn") for ground in ("card", "sunk")),  # code, in its colours
    *(("text", f"{kind}-soft") for kind in ("good", "bad")),  # a diff
]
SHAPES = [(kind, ground) for kind in ("accent", "good", "bad", "warn", "dim") for ground in GROUNDS]


def themes() -> dict[str, dict[str, str]]:
    """The tokens of each block that sets them; the dark ones set colours only."""
    style = STYLE.read_text(encoding="utf-8")
    blocks = re.findall(r"(:root[^{]*)\{\s*color-scheme: \w+;(.*?)\n\}?", re.sub(r"\n  ", " ", style), re.DOTALL)
    return {name.strip(): dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", body)) for name, body in blocks}


def luminance(colour: str) -> float:
    """Relative luminance (WCAG 2.2)."""
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(first: str, second: str) -> float:
    high, low = sorted((luminance(first), luminance(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_that_of_the_standard() -> None:
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


def test_the_system_s_dark_theme_is_the_chosen_one() -> None:
    light, by_system, chosen = themes().values()
    assert by_system == chosen
    assert light.keys() == chosen.keys()


@pytest.mark.parametrize("theme", themes())
@pytest.mark.parametrize(("text", "ground"), PAIRS)
def test_text_can_be_read(theme: str, text: str, ground: str) -> None:
    tokens = themes()[theme]
    assert contrast(tokens[text], tokens[ground]) >= LEAST


@pytest.mark.parametrize("theme", themes())
@pytest.mark.parametrize(("shape", "ground"), SHAPES)
def test_shapes_can_be_seen(theme: str, shape: str, ground: str) -> None:
    tokens = themes()[theme]
    assert contrast(tokens[shape], tokens[ground]) >= LEAST_OF_SHAPES
