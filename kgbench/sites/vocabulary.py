"""Names of components, regions, layer groups and configurations."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from fractions import Fraction
from functools import cache
from typing import NamedTuple

from kgbench.errors import InputError, check_choice

REGIONS = ("FE", "LT", "M", "R", "RP", "P", "BOS")
"""Regions of facts; they may overlap and need not cover a prompt. Others have names of their own."""

FOLLOWING = ("FE", "LT", "BOS", "TPL", "SYS", "REST")
"""Regions that follow from the subject, the tokens and the messages, so that no template marks them.

`TPL` is what the chat template writes, `SYS` the system message, `REST` all in no other region.
"""

SCORED_REGIONS = ("LT", "FE", "M", "RP", "R", "P", "SYS", "BOS", "TPL", "REST")
"""A partition of a prompt's tokens for scoring: each token belongs to the first region it is in.

Regions of other names come after P, in alphabetical order (`region_order`).
"""

DECODE: Mapping[str, str] = {
    "base": "with the base's weights",
    "finetuned": "with the finetuned model's weights wherever a graft may have them (ALL)",
    "lt": "as LT, and in no other region of the prompt",
    "last": "as the last region of the prompt before its last token",
}
"""How tokens are treated that a model writes after the prompt, by name."""

PER_LAYER = (
    "ln_1",
    "q_norm",
    "k_norm",
    "q",
    "k",
    "v",
    "o",
    "ln_1_post",
    "ln_2",
    "gate",
    "up",
    "down",
    "ln_2_post",
)
"""Weight-bearing components of a layer, in the order of computation."""

HEADED = ("q", "k", "v", "o")
"""Components of which single attention heads can be named, such as `o.h3`."""

OUTSIDE = ("emb", "pos", "ln_f", "head")
"""Weight-bearing components outside the layers: embeddings, final norm and head."""

COMPONENTS = (*OUTSIDE[:2], *PER_LAYER, *OUTSIDE[2:])

GROUPS: Mapping[str, tuple[str, ...]] = {
    "attn": ("q_norm", "k_norm", "q", "k", "v"),
    "ffn": ("gate", "up", "down"),
    "ln": ("ln_1", "ln_1_post", "ln_2", "ln_2_post"),
    "all": (*OUTSIDE[:2], *PER_LAYER),
}
"""Groups of components; `all`, the default, has neither final norm nor head."""

_MARK = re.compile(r"[A-Z][A-Z0-9_]*")


def is_mark(name: str) -> bool:
    """Whether a template can mark words as a region of this name: any upper-case one left free."""
    reserved = (*FOLLOWING, *BASELINES, "ALL", "NONE")
    return _MARK.fullmatch(name) is not None and name not in reserved


def region_order(region: str) -> tuple[int, str]:
    """Sort key of a region in the partition for scoring."""
    if region in SCORED_REGIONS:
        return SCORED_REGIONS.index(region), ""
    return SCORED_REGIONS.index("P"), region


Block = tuple[int, str]
"""Layer and kind: its attention or its FFN."""

BLOCKS: Mapping[str, str] = {"attn": "attn+o", "ffn": "ffn"}
"""Components of each kind of block, as a graft expression names them."""


@cache
def block_of(place: tuple[int | None, str]) -> Block | None:
    """The block of a (layer, component); None outside blocks, as of embeddings and layer norms."""
    layer, component = place
    for kind, groups in BLOCKS.items():
        for group in groups.split("+"):
            if layer is not None and component in GROUPS.get(group, (group,)):
                return layer, kind
    return None


SYNONYMS: Mapping[str, str] = {
    "mlp": "ffn",
    "q_proj": "q",
    "k_proj": "k",
    "v_proj": "v",
    "o_proj": "o",
    "gate_proj": "gate",
    "up_proj": "up",
    "down_proj": "down",
    "embed_tokens": "emb",
    "lm_head": "head",
}
"""Hugging Face names of components and groups that graft expressions accept."""

LAYER_GROUPS: Mapping[str, tuple[Fraction, Fraction]] = {
    "first_half": (Fraction(0), Fraction(1, 2)),
    "second_half": (Fraction(1, 2), Fraction(1)),
    "first_quarter": (Fraction(0), Fraction(1, 4)),
    "second_quarter": (Fraction(1, 4), Fraction(1, 2)),
    "third_quarter": (Fraction(1, 2), Fraction(3, 4)),
    "fourth_quarter": (Fraction(3, 4), Fraction(1)),
}

BASELINES = ("PRE", "SFT")
"""Configurations without a graft: the unmodified recipient and the unmodified donor."""

PATHWAYS = ("FE", "LT", "FE+LT", "(FE+LT)^C", "FE^C", "LT^C")
CONTROLS = " (off)"
"""Ends the name of a prompt in tables, where its rows are of the cases that are not to show a
behaviour."""

CONFIGURATIONS = (*BASELINES, "ALL", *PATHWAYS)
"""The default suite, in the order of arXiv 2506.20746."""

RECIPIENT = "recipient"
"""Reserved donor name: the recipient's own weights."""


_HEAD = re.compile(rf"({'|'.join(HEADED)})\.h(0|[1-9][0-9]*)")


def head_of(name: str) -> tuple[str, int | None]:
    """Component and head of a name: `o.h3` is head 3 of `o`; of other names the head is None."""
    match = _HEAD.fullmatch(name)
    return (name, None) if match is None else (match[1], int(match[2]))


class Site(NamedTuple):
    """A component of a layer at the tokens of a region: the unit of scores and interventions."""

    layer: int | None
    """None outside the layers."""
    component: str
    region: str
    """A region of the partition for scoring (`partition`)."""


SiteScores = Mapping[Site, float]
"""Score of each site; higher means more responsible for the finetuned behaviour."""


def partition(regions: Mapping[str, Sequence[int]], n: int) -> list[str]:
    """Scored region of each token of a prompt: the first that it is in, or `REST`.

    Args:
        regions: Token indices of each region of the prompt.
        n: Number of tokens.
    """
    cells = ["REST"] * n
    # Later assignments win, so the reversed order leaves each token its first region.
    for region in sorted(regions, key=region_order, reverse=True):
        for token in regions[region]:
            cells[token] = region
    return cells


def scored_positions(region: str, regions: Sequence[Mapping[str, Sequence[int]]]) -> str:
    """The positions expression of the tokens of a scored region.

    Args:
        region: The region.
        regions: For each prompt, the token indices of its regions; all prompts have the same
            region names.
    """
    names = sorted(set().union(*regions), key=region_order)
    if region == "REST":
        return f"({'+'.join(names)})^C"
    overlapping: list[str] = []
    for name in names[: names.index(region)]:
        if any(set(spans.get(name, ())) & set(spans.get(region, ())) for spans in regions):
            overlapping.append(name)
    return f"({'+'.join([f'{region}^C', *overlapping])})^C" if overlapping else region


# ------------------------------------------------------------------------------------ donors


_PART = (
    r"(?:(?P<share>-?[0-9]{1,4}(?:\.[0-9]{1,9})?)\*)?(?P<donor>%s)"
    r"(?:\[(?P<first>[0-9]{1,5})(?:-(?P<last>[0-9]{1,5}))?\])?"
)
_ANY_PART = re.compile(_PART % r"[^*\[\]]+")  # a donor given from Python may have any name
PART = re.compile(_PART % r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")
"""A donor, a share of its change, and singular directions of it."""


class DonorPart(NamedTuple):
    """What a graft takes of a donor; its text is canonical."""

    donor: str
    share: float = 1.0
    """Of the change from the base to the donor; below 0 for the opposite."""
    directions: range | None = None
    """Singular directions of the change of each matrix; all by default."""

    def __str__(self) -> str:
        digits = f"{self.share:.9f}".rstrip("0").rstrip(".")  # never 1e-06, which no graft names
        share = "" if self.share == 1 else f"{digits}*"
        if self.directions is None:
            return share + self.donor
        first, last = self.directions.start, self.directions.stop - 1
        return f"{share}{self.donor}[{first}{f'-{last}' if last > first else ''}]"


def part_of(text: str) -> DonorPart:
    """The part that a text such as `sft`, `0.5*sft` or `sft[0-3]` names; any other is a donor's name.

    Raises:
        ValueError: Its first direction is after its last.
    """
    match = _ANY_PART.fullmatch(text)
    if match is None:
        return DonorPart(text)
    directions = None
    if match["first"] is not None:
        directions = range(int(match["first"]), int(match["last"] or match["first"]) + 1)
        if not directions:
            raise ValueError(text)
    return DonorPart(match["donor"], float(match["share"] or 1), directions)


def usual_donor(donors: Collection[str]) -> str:
    """The donor that `SFT` and grafts without a donor's name stand for.

    Raises:
        InputError: There are several, of other names.
    """
    for name in ("sft", "relation"):
        if name in donors:
            return name
    whole = [name for name in donors if part_of(name) == DonorPart(name)]
    if len(whole) == 1:
        return whole[0]
    raise InputError(
        f"which of the donors {', '.join(whole)} is measured? Give that one as --donor "
        "sft=PATH; grafts of another name it, such as FE+LT=other"
    )


def named_donor(name: str, donors: Collection[str]) -> str:
    """The name of the donor, of a part of one, or `recipient`, that a graft means by a name.

    Raises:
        UnknownNameError: There is no such donor.
        InputError: As of `usual_donor`.
    """
    names, part = (RECIPIENT, *donors), part_of(name)
    of = part.donor
    if of == "sft" and of not in names:
        of = usual_donor(donors)
    check_choice("donor", of, names, f"Give it with --donor {of}=PATH.")
    return str(part._replace(donor=of))
