"""A look into a model, as a page: what its heads look at, and its guesses after each layer."""

# L tokens   H heads

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bertie.report.page import Markup, escape, heading, page, paragraph, table

LEVELS = 8  # shades of a map
FAINT = 1 / 32  # weights below are left white
CELL, LABEL = 14, 72  # of a large map: a weight, and the room for pieces
HEADS_STYLE = """
.heads { display: grid; gap: .35rem; overflow-x: auto; }
.heads a { color: inherit; text-decoration: none; min-width: 4.4rem; }
.heads svg { width: 100%; height: auto; display: block; border: 1px solid var(--line); }
.heads span { font-size: .68rem; color: var(--soft); white-space: nowrap; }
.heads b { font-size: .75rem; align-self: center; color: var(--soft); font-weight: 600; }
details { margin: .5rem 0; } summary { cursor: pointer; }
figure:target { outline: 2px solid var(--c1); }
"""


class Guessed(NamedTuple):
    """A masked token and what each layer would put there: the piece and its probability."""

    piece: str
    layers: Sequence[tuple[str, float]]


def make_page(
    text: str,
    model: str,
    pieces: Sequence[str],
    weights: np.ndarray,
    guesses: Sequence[Guessed],
    *,
    mask: str = "[MASK]",
) -> str:
    """`weights` are (layers, H, L, L); without a masked LM head there are no guesses."""
    num_layers, num_heads = weights.shape[:2]
    blocks = [
        paragraph(text, "headline"),
        paragraph(
            f"{model}: {num_layers} layers, {num_heads} heads in each, {len(pieces)} pieces.",
            "soft",
        ),
        *guess_blocks(guesses, mask),
        heading("What each head looks at"),
        paragraph(
            "A row of a map is a piece that looks, a column one that is looked at: the stronger "
            "the colour, the more it takes of it. Below each map is where its pieces look most, on "
            "average, and how much of their look goes there. Click on a map for a large one."
        ),
        grid(pieces, weights),
        heading("Large maps"),
        *(layer_details(number, pieces, of_layer) for number, of_layer in enumerate(weights, 1)),
    ]
    # Chosen here and not in the file of styles: one column for the names, one for each head.
    columns = (
        f".heads {{ grid-template-columns: 3.6rem repeat({num_heads}, minmax(4.4rem, 8rem)) }}"
    )
    return page("A look into a model", blocks, style=HEADS_STYLE + columns)


def guess_blocks(guesses: Sequence[Guessed], mask: str) -> list[Markup]:
    if not guesses:
        return []
    is_masked = all(one.piece == mask for one in guesses)  # in the text itself: nobody knows more
    what = (
        "Each mask of the text is guessed by the masked LM head from what each layer has made of it"
        if is_masked
        else "Each piece is masked in turn, and the masked LM head guesses it from what each layer "
        "has made of the mask"
    )
    columns = ["masked", "embeddings", *(f"layer {n}" for n in range(1, len(guesses[0].layers)))]
    rows = [
        [one.piece, *(show_guess(one.piece, *guess) for guess in one.layers)] for one in guesses
    ]
    return [
        heading("Guesses after each layer"),
        paragraph(
            f"{what}. The head was trained on the last layer: the others show where an answer "
            "begins to take shape." + ("" if is_masked else " ✓ is right.")
        ),
        table(columns, rows),
    ]


def show_guess(wanted: str, piece: str, probability: float) -> str:
    """
    >>> show_guess("cat", "cat", 0.5)
    '✓ cat 50%'
    """
    return f"{'✓ ' if piece == wanted else ''}{piece} {probability:.0%}"


def grid(pieces: Sequence[str], weights: np.ndarray) -> Markup:
    """Small maps, a row a layer, a column a head."""
    num_heads = weights.shape[1]
    cells = ["<b></b>", *(f"<b>head {head}</b>" for head in range(1, num_heads + 1))]
    for layer, of_layer in enumerate(weights, 1):
        cells.append(f"<b>layer {layer}</b>")
        for head, one in enumerate(of_layer, 1):
            name, share = find_pattern(pieces, one)
            cells.append(
                f'<a href="#layer-{layer}-head-{head}">{small_map(one)}'
                f"<span>{escape(name)} {share:.0%}</span></a>"
            )
    return Markup(f'<div class="heads">{"".join(cells)}</div>')


def find_pattern(pieces: Sequence[str], weights: np.ndarray) -> tuple[str, float]:
    """Where the pieces look most on average, and how much: the piece before, itself, [SEP], ..."""
    size = len(pieces)
    shares = {
        "itself": weights.trace() / size,
        "previous": weights.trace(-1) / max(1, size - 1),
        "next": weights.trace(1) / max(1, size - 1),
        pieces[0]: weights[:, 0].mean(),
        pieces[-1]: weights[:, -1].mean(),
    }
    return max(((name, float(share)) for name, share in shares.items()), key=lambda pair: pair[1])


def shades(weights: np.ndarray, cell: int, left: int = 0, top: int = 0) -> str:
    """A path for each shade, of the cells that have it."""
    levels = np.ceil(np.sqrt(weights) * LEVELS).astype(int)  # the eye sees the root of a share
    levels[weights < FAINT] = 0
    paths = []
    for level in range(1, LEVELS + 1):
        rows, columns = np.nonzero(levels == level)
        if len(rows):
            squares = "".join(
                f"M{left + cell * x} {top + cell * y}h{cell}v{cell}h-{cell}z"
                for y, x in zip(rows.tolist(), columns.tolist(), strict=True)
            )
            opacity = f"{level / LEVELS:.3f}"
            paths.append(f'<path d="{squares}" fill="var(--c0)" fill-opacity="{opacity}"/>')
    return "".join(paths)


def small_map(weights: np.ndarray) -> str:
    size = len(weights)
    return (
        f'<svg viewBox="0 0 {size} {size}" shape-rendering="crispEdges">{shades(weights, 1)}</svg>'
    )


def layer_details(layer: int, pieces: Sequence[str], of_layer: np.ndarray) -> Markup:
    figures = "".join(
        f'<figure id="layer-{layer}-head-{head}">{large_map(pieces, one)}'
        f"<figcaption>layer {layer}, head {head}</figcaption></figure>"
        for head, one in enumerate(of_layer, 1)
    )
    return Markup(
        f'<details><summary>Layer {layer}</summary><div class="figures">{figures}</div></details>'
    )


def large_map(pieces: Sequence[str], weights: np.ndarray) -> str:
    """With the pieces beside its rows and above its columns."""
    side = LABEL + CELL * len(pieces) + 2
    labels = []
    for number, piece in enumerate(pieces):
        place = LABEL + CELL * number + CELL - 4
        name = escape(piece if len(piece) <= 12 else f"{piece[:11]}…")
        labels.append(f'<text x="{LABEL - 4}" y="{place}" text-anchor="end">{name}</text>')
        turned = f'transform="translate({place},{LABEL - 4}) rotate(-90)"'
        labels.append(f"<text {turned}>{name}</text>")
    frame = (
        f'<rect x="{LABEL}" y="{LABEL}" width="{CELL * len(pieces)}" '
        f'height="{CELL * len(pieces)}" fill="none" stroke="var(--line)"/>'
    )
    return (
        f'<svg viewBox="0 0 {side} {side}" font-size="10" fill="var(--ink)">'
        f"{''.join(labels)}{shades(weights, CELL, LABEL, LABEL)}{frame}</svg>"
    )
