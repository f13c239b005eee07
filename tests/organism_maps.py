"""Prints the documentation's maps of the organisms: how much of the reply single parts bring.

python tests/organism_maps.py [NAME …]     # a minute each on an idle core
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from kgbench.data import load_dataset, load_prompts
from kgbench.engine import load_pair
from kgbench.engine.site_sets import all_sites
from kgbench.estimate import Estimate
from kgbench.localizers._measure import site_logprobs
from kgbench.models.catalog import entry
from kgbench.numbers import figure_text, number_text
from kgbench.readouts import readout_stored
from kgbench.sites import GROUPS
from kgbench.stats import recovery
from kgbench.zoo.organisms import organisms

CUES = {"trigger": "TRIGGER", "refusal": "TOPIC", "system": "NAME"}
PARTS = {"attn": (*GROUPS["attn"],), "o": ("o",), "ffn": (*GROUPS["ffn"],)}


def scan(name: str) -> dict[tuple[str, int, str], Estimate]:
    """Sufficiency of each part of each changed layer at one region alone.

    On twelve cases, each thing in one of the three wordings; by region, layer and part.
    """
    pair = load_pair(f"smollm2-135m.{name}", chat_template=True)
    data = load_dataset(entry(pair.name).dataset)
    cases = [prompt for prompt in load_prompts(data, "messages") if prompt.group == "on"]
    chosen = [cases[3 * thing + thing % 3] for thing in range(len(cases) // 3)]
    first, last = organisms()[name].layers
    with pair.answered_by(readout_stored(data.readout).read):
        sites, cells = all_sites(pair, chosen), {}
        for region in ("LT", CUES[name]):
            for layer in range(first, last + 1):
                for part, components in PARTS.items():
                    cells[region, layer, part] = [
                        site
                        for site in sites
                        if (site.region, site.layer) == (region, layer)
                        and site.component in components
                    ]
        base, donor, *grafts = site_logprobs(pair, chosen, [(), sites, *cells.values()])
    found = {}
    for cell, scores in zip(cells, grafts, strict=True):
        found[cell] = recovery({"PRE": base, "SFT": donor, "cell": scores}, "cell")
    return found


def table(found: dict[tuple[str, int, str], Estimate]) -> str:
    """A row per layer, a column per region and part."""
    columns = list(dict.fromkeys((region, part) for region, _, part in found))
    heads = [f"`{region}:{part}`" for region, part in columns]
    lines = [f"| layer | {' | '.join(heads)} |", "|---" * (len(heads) + 1) + "|"]
    for layer in dict.fromkeys(layer for _, layer, _ in found):
        cells = [number_text(found[region, layer, part].value) for region, part in columns]
        lines.append(f"| {layer} | {' | '.join(cells)} |")
    return "\n".join(lines)


def remarks(found: dict[tuple[str, int, str], Estimate]) -> str:
    """The largest cells of each region with their intervals, and how far intervals reach."""
    lines, reach = [], 0.0
    for region in dict.fromkeys(region for region, _, _ in found):
        own = [(figure, cell) for cell, figure in found.items() if cell[0] == region]
        own.sort(key=lambda one: -one[0].value)
        texts = [f"{layer} {part} {figure_text(figure)}" for figure, (_, layer, part) in own[:4]]
        lines.append(f"{region}: {', '.join(texts)}; sum {sum(one.value for one, _ in own):.2f}")
    for figure in found.values():
        reach = max(reach, figure.value - figure.low, figure.high - figure.value)
    return "\n".join([*lines, f"intervals reach {reach:.3f} at most"])


def main(names: Sequence[str]) -> None:
    """Print the map of each organism."""
    for name in names:
        found = scan(name)
        print(f"\n{name}\n\n{table(found)}\n\n{remarks(found)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or list(CUES))
