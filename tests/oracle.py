"""Dynamic weight grafting as the paper states it (arXiv 2506.20746), in plain PyTorch.

For each token a deep copy of the recipient, parts of whose weights are overwritten by the donor's,
run on that one token with the keys and values that earlier copies left in the cache. Slow, and
independent of the package on purpose: it shares with it neither the engine, nor the family maps,
nor the parser of graft expressions. All laws of the engine are measured against it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import nn
from transformers import DynamicCache

Assignment = frozenset[tuple[str, str]]
"""Weights of one token that are a donor's: (place, donor). A place is a component, inside the
layers with the layer before it: "3.q".
"""

PER_LAYER = ("ln_1", "q", "k", "v", "o", "ln_2", "gate", "up", "down")
GROUPS = {
    "attn": ("q", "k", "v"),
    "ffn": ("gate", "up", "down"),
    "ln": ("ln_1", "ln_2"),
    "all": ("emb", "pos", *PER_LAYER),
}
SHARES = {
    "first_half": (0, 2, 4),
    "second_half": (2, 4, 4),
    "first_quarter": (0, 1, 4),
    "second_quarter": (1, 2, 4),
    "third_quarter": (2, 3, 4),
    "fourth_quarter": (3, 4, 4),
}


def graft_logits(
    recipient: nn.Module,
    donors: Mapping[str, nn.Module],
    ids: Sequence[int],
    regions: Mapping[str, Sequence[int]],
    graft: str,
    readouts: Sequence[int] | None = None,
    make: Callable[[nn.Module, Mapping[str, nn.Module], Assignment], nn.Module] | None = None,
) -> torch.Tensor:
    """Next-token logits [readout, vocabulary] of one prompt under one graft.

    Args:
        recipient: The model whose weights are used wherever the graft says nothing.
        donors: The other models by name.
        ids: Token ids of the prompt.
        regions: Token indices of each region.
        graft: A graft expression, `PRE` or `SFT`.
        readouts: Tokens to read out; by default the last one.
        make: Makes the model of one token; by default `hybrid`, a fresh deep copy for every token as the paper does. A caller in a hurry
            gives one that keeps the copies it has made.
    """
    wanted = assignments(graft, regions, len(ids), recipient.config.num_hidden_layers)
    cache, read = DynamicCache(config=recipient.config), {}
    with torch.no_grad():
        for token, assignment in enumerate(wanted):
            model = (make or hybrid)(recipient, donors, assignment)
            output = model(
                input_ids=torch.tensor([[ids[token]]]), past_key_values=cache, use_cache=True
            )
            cache, read[token] = output.past_key_values, output.logits[0, -1]
    return torch.stack([read[t] for t in (readouts if readouts is not None else [len(ids) - 1])])


def hybrid(
    recipient: nn.Module, donors: Mapping[str, nn.Module], assignment: Assignment
) -> nn.Module:
    """A deep copy of the recipient, overwritten in weight space by what the donors are to give."""
    model = copy.deepcopy(recipient)
    for place, donor in sorted(assignment, key=lambda given: ".h" in given[0]):  # heads at last
        source = recipient if donor == "recipient" else donors[donor]
        for ours, theirs in zip(weights(model, place), weights(source, place), strict=True):
            ours.copy_(theirs)
    return model


# ------------------------------------------------------------------ weights, written out per family


def weights(model: nn.Module, place: str) -> list[torch.Tensor]:
    """Views of the weights at a place; writing to them writes to the model. Nothing where the
    family has no such component.
    """
    place, _, head = place.partition(".h")
    layer, _, component = place.rpartition(".")
    of = {"gpt2": _gpt2, "gpt_neox": _neox, "llama": _llama, "gemma": _llama}[
        model.config.model_type
    ]
    whole = of(model, int(layer) if layer else None, component)
    return _head(model, component, int(head), whole) if head else whole


def _head(
    model: nn.Module, component: str, head: int, whole: list[torch.Tensor]
) -> list[torch.Tensor]:
    """Views of one attention head's share: outputs of q, k and v, inputs of o, whose bias is no
    head's.
    """
    config = model.config
    count = config.num_attention_heads
    if component in ("k", "v"):
        count = getattr(config, "num_key_value_heads", count)
    transposed = config.model_type == "gpt2"  # its weights are [in, out]
    shares = []
    for weight in whole[:1] if component == "o" else whole:
        if component != "o" and config.model_type == "gpt_neox":
            shares.append(weight[head])  # [head, width, ...] already
            continue
        outputs = -1 if transposed else 0
        dim = outputs if component != "o" else -1 - outputs
        shares.append(weight.unflatten(dim, (count, -1)).select(dim - (dim < 0), head))
    return shares


def _own(module: nn.Module) -> list[torch.Tensor]:
    return [p.data for p in (module.weight, getattr(module, "bias", None)) if p is not None]


def _gpt2(model: nn.Module, layer: int | None, component: str) -> list[torch.Tensor]:
    if layer is None:
        t = model.transformer
        return _own({"emb": t.wte, "pos": t.wpe, "ln_f": t.ln_f, "head": model.lm_head}[component])
    block = model.transformer.h[layer]
    if component in (
        "q",
        "k",
        "v",
    ):  # Conv1D holds its weight as [in, out], and c_attn's output is q, k and v side by side
        width = model.config.n_embd
        start = ("q", "k", "v").index(component) * width
        weight, bias = _own(block.attn.c_attn)
        return [weight[:, start : start + width], bias[start : start + width]]
    modules = {
        "ln_1": block.ln_1,
        "o": block.attn.c_proj,
        "ln_2": block.ln_2,
        "up": block.mlp.c_fc,
        "down": block.mlp.c_proj,
    }
    return _own(modules[component]) if component in modules else []


def _neox(model: nn.Module, layer: int | None, component: str) -> list[torch.Tensor]:
    if layer is None:
        outside = {
            "emb": model.gpt_neox.embed_in,
            "ln_f": model.gpt_neox.final_layer_norm,
            "head": model.lm_head,
        }
        return _own(outside[component]) if component in outside else []
    block = model.gpt_neox.layers[layer]
    if component in ("q", "k", "v"):  # output rows are [head, (q, k, v), width of a head]
        heads = model.config.num_attention_heads
        which = ("q", "k", "v").index(component)
        return [
            w.view(heads, 3, -1, *w.shape[1:])[:, which]
            for w in _own(block.attention.query_key_value)
        ]
    modules = {
        "ln_1": block.input_layernorm,
        "o": block.attention.dense,
        "ln_2": block.post_attention_layernorm,
        "up": block.mlp.dense_h_to_4h,
        "down": block.mlp.dense_4h_to_h,
    }
    return _own(modules[component]) if component in modules else []


def _llama(model: nn.Module, layer: int | None, component: str) -> list[torch.Tensor]:
    if layer is None:
        outside = {"emb": model.model.embed_tokens, "ln_f": model.model.norm, "head": model.lm_head}
        return _own(outside[component]) if component in outside else []
    block = model.model.layers[layer]
    attention, mlp = block.self_attn, block.mlp
    modules = {
        **{
            "ln_1": block.input_layernorm,
            "q": attention.q_proj,
            "k": attention.k_proj,
            "v": attention.v_proj,
            "o": attention.o_proj,
        },
        **{
            "ln_2": block.post_attention_layernorm,
            "gate": mlp.gate_proj,
            "up": mlp.up_proj,
            "down": mlp.down_proj,
        },
    }
    return _own(modules[component])


# ------------------------------------------------------------------------- what an expression means


class _Tokens(frozenset[int]):
    """Sets of tokens that Python itself evaluates: `+` is the union, `*` and the set of all tokens
    the complement.
    """

    def __add__(self, other: _Tokens) -> _Tokens:
        return _Tokens(self | other)

    def __mul__(self, everything: _Tokens) -> _Tokens:
        return _Tokens(everything - self)


def assignments(
    graft: str, regions: Mapping[str, Sequence[int]], n_tokens: int, n_layers: int
) -> list[Assignment]:
    """What is a donor's at each token of a prompt."""
    if graft in ("PRE", "SFT"):
        graft = "NONE" if graft == "PRE" else "ALL:all+ln_f+head"
    chosen: list[dict[str, str]] = [{} for _ in range(n_tokens)]
    for term in graft.replace(" ", "").split(";"):
        rest, _, donor = term.partition("=")
        rest, _, layers = rest.partition("@")
        positions, _, components = rest.partition(":")
        places = list(_places(components, layers, n_layers))
        for token in token_set(positions, regions, n_tokens):
            for place in places:  # a whole component overrules what was said of its heads
                for head in [known for known in chosen[token] if known.startswith(f"{place}.h")]:
                    del chosen[token][head]
            chosen[token].update(dict.fromkeys(places, donor or "sft"))
    return [_assigned(token) for token in chosen]


def _assigned(places: Mapping[str, str]) -> Assignment:
    """What of a token is a donor's; of heads, those that are not their component's donor's."""
    assigned = set()
    for place, donor in places.items():
        component, _, head = place.partition(".h")
        if donor != (places.get(component, "recipient") if head else "recipient"):
            assigned.add((place, donor))
    return frozenset(assigned)


def token_set(
    positions: str, regions: Mapping[str, Sequence[int]], n_tokens: int
) -> frozenset[int]:
    """Tokens that a positions expression names."""
    names = {name: _Tokens(tokens) for name, tokens in regions.items()}
    everything = _Tokens(range(n_tokens))
    names |= {"ALL": everything, "NONE": _Tokens(), "_others": everything}
    return frozenset(eval(positions.replace("^C", "*_others"), {"__builtins__": {}}, names))


def _places(components: str, layers: str, n_layers: int) -> Iterator[str]:
    for name in (components or "all").split("+"):
        for component in GROUPS.get(name, (name,)):
            if component.partition(".h")[0] in PER_LAYER:
                yield from (
                    f"{layer}.{component}" for layer in sorted(layer_set(layers or "all", n_layers))
                )
            elif not layers:
                yield component


def layer_set(layers: str, n: int) -> set[int]:
    found: set[int] = set()
    for part in layers.split(","):
        if part == "all":
            found |= set(range(n))
        elif part in SHARES:
            first, last, of = SHARES[part]
            found |= set(range(first * n // of, last * n // of))
        elif "/" in part:
            (p, q), (r, s) = ([int(x) for x in (*end.split("/"), 1)][:2] for end in part.split("-"))
            found |= set(range(p * n // q, r * n // s))
        else:
            first, last = (int(end) for end in (part.split("-") * 2)[:2])
            found |= set(range(first, last + 1))
    return found
