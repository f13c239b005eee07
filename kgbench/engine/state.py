"""State of a model pair and of the process that a localizer must not change."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from types import FunctionType
from typing import Any

import torch
from torch import nn

from kgbench.data import Prompt
from kgbench.data.prompts import Question
from kgbench.models.in_memory import global_hooks
from kgbench.models.pair import ModelPair
from kgbench.models.tensors import hash_tensors
from kgbench.sites import RECIPIENT

_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_NO_ATTRIBUTES = (*_HOOKS, "_parameters", "_buffers", "_modules", "training", "max_seq_len_cached")
"""Entries of a module's dictionary that are compared separately, and one that forwards change."""
_PATCHED = ("kgbench", "torch.nn.functional")
"""Packages and modules whose functions and classes must stay the same."""
_PLAIN = "a plain forward"
_METHODS = (FunctionType, classmethod, staticmethod, property)


def process_state() -> dict[str, object]:
    """State of the process that later forwards depend on, by name, as comparable values."""
    return {
        "autocast": [(kind, torch.is_autocast_enabled(kind)) for kind in ("cpu", "cuda")],
        "torch's settings": _settings(),
        "torch's global hooks": list(map(id, global_hooks())),
        "functions of kgbench or torch": _functions(),
    }


def state_of(pair: ModelPair) -> dict[str, object]:
    """State of the process and of a pair, except weights, that later forwards depend on.

    It includes digests of plain forwards of the pair's models on a few tokens, and the encoded
    prompts whose cached encoding differs from the tokenizer's.
    """
    with pair.lock:
        state = {**process_state(), "the pair's encoded prompts": _misread(pair)}
        for name, model in {RECIPIENT: pair.recipient, **pair.donors}.items():
            modules, weights = list(model.named_modules()), list(model.parameters())
            config = json.dumps(model.config.to_dict(), sort_keys=True, default=str)
            parts = {
                "the configuration": config,
                "the gradients": [(each.requires_grad, each.grad is None) for each in weights],
                "the hooks": [(path, _hook_ids(module)) for path, module in modules],
                "the mode": [(path, module.training) for path, module in modules],
                "the modules": [(path, _attributes(module)) for path, module in modules],
                "the buffers": [(each[0], hash_tensors([each])) for each in model.named_buffers()],
                _PLAIN: _forward(model),
            }
            state |= {f"{part} of {name}": value for part, value in parts.items()}
        return state


def changes(before: Mapping[str, object], after: Mapping[str, object]) -> tuple[str, ...]:
    """Names of the entries that differ; plain forwards only if nothing else differs."""
    names = [name for name, value in before.items() if _differ(value, after[name])]
    return tuple([name for name in names if not name.startswith(_PLAIN)] or names)


def _differ(before: object, after: object) -> bool:
    """Whether two values differ; functions that were loaded in between do not count."""
    if isinstance(before, dict) and isinstance(after, dict):
        return any(key not in after or value != after[key] for key, value in before.items())
    return before != after


def _settings() -> tuple[object, ...]:
    backends = torch.backends.cuda
    return (
        *(
            getattr(backends, f"{name}_sdp_enabled")()
            for name in ("flash", "mem_efficient", "math", "cudnn")
        ),
        backends.matmul.allow_tf32,
        torch.backends.cudnn.allow_tf32,
        torch.backends.mkldnn.enabled,
        torch.get_float32_matmul_precision(),
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.are_deterministic_algorithms_enabled(),
    )


def _hook_ids(module: nn.Module) -> list[int]:
    """Identities of the hooks of a module."""
    ids: list[int] = []
    for name in _HOOKS:
        ids += map(id, getattr(module, name).values())
    return ids


def _functions() -> dict[str, object]:
    """Identities of functions and methods and of their code, by qualified name."""
    codes: dict[str, object] = {}
    for place, module in list(sys.modules.items()):
        if not any(place == package or place.startswith(f"{package}.") for package in _PATCHED):
            continue
        for name, value in list(vars(module).items()):
            if callable(value):
                codes[f"{place}.{name}"] = _code(value)
            if isinstance(value, type) and value.__module__ == place:
                for key, member in vars(value).items():
                    if isinstance(member, _METHODS):
                        codes[f"{place}.{name}.{key}"] = _code(member)
    return codes


def _code(value: object) -> tuple[int, int]:
    return id(value), id(getattr(value, "__code__", None))


def _misread(pair: ModelPair) -> list[str]:
    """Prompts whose cached encoding is stale, and questions that differ from their prompts."""
    cache = pair._encoded
    questions = {prompt: code for prompt, code in cache.items() if isinstance(prompt, Question)}
    reference = {prompt: pair.encoded_again(prompt) for prompt in cache if prompt not in questions}
    wrong = [prompt for prompt, code in reference.items() if cache[prompt] != code]
    by_key = {_key(prompt): code for prompt, code in reference.items()}
    for question, code in questions.items():
        expected = by_key.get(_key(question))
        if expected is not None and (code.ids, code.regions) != (expected.ids, expected.regions):
            wrong.append(question)
    return [prompt.text for prompt in wrong]


def _key(prompt: Prompt) -> tuple[str, str, str]:
    return prompt.name, prompt.fact.id, prompt.text


def _attributes(module: nn.Module) -> tuple[object, ...]:
    """Class, children and attributes of a module other than tensors, such as a norm's epsilon."""
    attributes = []
    for name, value in sorted(vars(module).items()):
        if name not in _NO_ATTRIBUTES:
            attributes.append((name, _value(value)))
    children = list(map(id, module.children()))
    return type(module), id(type(module).forward), attributes, children


def _value(value: object) -> object:
    """Numbers and text by value, other objects by identity."""
    plain = isinstance(value, bool | int | float | str | None | tuple)
    return repr(value) if plain else id(value)


def _forward(model: Any) -> str:
    """SHA-256 of the logits of a few tokens."""
    device = model.get_input_embeddings().weight.device
    ids = torch.arange(min(8, model.config.vocab_size), device=device)[None]
    with torch.inference_mode():
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits
        return hash_tensors([("logits", logits)])
