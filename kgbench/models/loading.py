"""Pairs from checkpoints: found, checked against each other, and read into models."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import reduce
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from accelerate import init_empty_weights
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from kgbench.errors import ModelError, check_choice, first_line
from kgbench.models import DTYPE_NAMES, SHORT_DTYPES, catalog, check_dtype
from kgbench.models.checkpoints import (
    Checkpoint,
    Stamp,
    locate,
    read_model_config,
    stored_tensors,
    stored_types,
)
from kgbench.models.family_map import family_in, load_family, written
from kgbench.models.in_memory import MEMORY, HeldModel, answers, refuse_hooks
from kgbench.models.library import in_turn, quiet_library
from kgbench.models.lora import (
    LowRank,
    base_module,
    is_peft,
    plain_names,
    stored_donor,
    stored_settings,
)
from kgbench.models.pair import ModelPair, make_ready, probe_of
from kgbench.models.placement import DeviceMap, devices_of, free_memory, main_device, place
from kgbench.models.tensors import apply_delta, hold, refuse_non_finite, share_equal, shared_copy
from kgbench.sites import RECIPIENT

DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, SHORT_DTYPES.get(name, name)) for name in (*DTYPE_NAMES, *SHORT_DTYPES)
}
"""Types of weights by the name that records have, and by their short names."""

Source = str | os.PathLike[str] | nn.Module
"""A model of a pair: a directory, a Hub id or a name, or the model itself."""

_CONFIG_KEYS = (
    "model_type",
    "num_hidden_layers",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "n_layer",
    "n_embd",
    "n_head",
    "n_inner",
    "sliding_window",
    "layer_types",
    "rope_parameters",
    "no_rope_layers",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "embedding_multiplier",
    "attention_multiplier",
    "residual_multiplier",
    "logits_scaling",
    "query_pre_attn_scalar",
    "clip_qkv",
    "hidden_act",
    "hidden_activation",
    "activation_function",
    "use_parallel_residual",
    "do_layer_norm_before",
    "scale_attn_weights",
    "scale_attn_by_inverse_layer_idx",
)
"""Parts of a configuration that both models must have alike.

Under a graft the recipient's count, at whatever tokens.
"""

_BY_LENGTH = ("dynamic", "longrope")
"""Kinds of rotary positions whose angles follow from `max_position_embeddings`.

Elsewhere that number is a promise only.
"""

_NO_SETTINGS = ("training", "gradient_checkpointing")
"""Attributes of modules that change no answer in eval mode."""

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")
_OF_TOKENIZERS = (".json", ".txt", ".model", ".jinja", ".codes", ".spm")
"""Ends of all files from which a tokenizer may be made."""
_OF_MODELS = (
    *("config.json", "generation_config.json", "adapter_config.json"),
    *("model.safetensors.index.json", "trainer_state.json"),
)
"""Files with such an end from which none is made."""

_BOS: Mapping[str, Collection[str]] = {
    "gemma": ("<bos>",),
    "gemma2": ("<bos>",),
    "gemma3_text": ("<bos>",),
    "llama": ("<s>", "<|begin_of_text|>"),
    "mistral": ("<s>",),
    "opt": ("</s>",),
}
"""The BOS tokens with which models of a type were trained.

Not all models of these types have one, but all that have this one.
"""


class UnconfirmedBaseWarning(UserWarning):
    """An adapter names another base than the recipient."""


class MissingBosWarning(UserWarning):
    """A tokenizer does not add the BOS token that models of its type were trained with."""


_ATTENTION = ("auto", "sdpa", "eager")


def read_model(
    place: Checkpoint, dtype: torch.dtype | str, device: str, attention: str | None
) -> PreTrainedModel:
    """A checkpoint's model, ready for a pair.

    What attention backend the checkpoint asks for is not heeded, since it may be code from outside.

    Args:
        place: The checkpoint.
        dtype: Type of the weights.
        device: Where they are put.
        attention: The attention backend; None leaves it to the library.

    Raises:
        ModelError: It does not load, or lacks weights.
    """
    with _quietly(place):
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            place.directory,
            config=read_model_config(place.directory),
            dtype=dtype,
            attn_implementation=attention,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # refused below, by name
        )
    model, info = loaded
    tensors = stored_tensors(place.directory, place.origin)
    # Of what the library would leave out, buffers that a model computes itself may go.
    unused = [n for n in info["unexpected_keys"] if n not in tensors or not tensors[n].is_buffer(n)]
    faults = {
        "are missing": info["missing_keys"],
        "are taken by no module": unused,
        "have another shape": [name for name, *_ in info["mismatched_keys"]],
    }
    for fault, names in faults.items():
        if names:
            raise ModelError(
                f"{place.origin} does not load: {len(names)} weights {fault}, such as "
                f"{min(names)!r}; the likely cause is a config.json of another model: give the one "
                "that was saved with the weights"
            )
    ready = make_ready(nn.Module.to(model, device))
    for name, tensor in ready.state_dict().items():
        refuse_non_finite(name, tensor, place.origin)
    if place.delta is not None:
        apply_delta(ready, place.delta, place.origin)
    return ready


def read_empty(place: Checkpoint, dtype: torch.dtype, attention: str) -> PreTrainedModel:
    """A checkpoint's model without its weights; not ready for a pair before it has them.

    Embeddings and head are still tied where they are.

    Raises:
        ModelError: The library makes no model of its configuration.
    """
    with _quietly(place), init_empty_weights(include_buffers=False):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            read_model_config(place.directory),
            dtype=dtype,
            attn_implementation=attention,
            trust_remote_code=False,
        )
    model.tie_weights()
    return model


@contextmanager
def _quietly(place: Checkpoint) -> Iterator[None]:
    """The library without its reports, and its errors as ours."""
    try:
        with quiet_library():
            yield
    except Exception as error:  # the library raises anything on a broken configuration or file
        # The details that it refers to are not shown.
        reason = first_line(error).partition(" For details look at")[0]
        raise ModelError(f"{place.origin} does not load: {reason}") from error


def adapted_donor(
    recipient: PreTrainedModel, folder: Path, origin: str, base: str
) -> tuple[PreTrainedModel, nn.Module, int]:
    """What `stored_donor` gives of an adapter and the recipient, whose origin is `base`.

    The base that the adapter names is never looked up.
    """
    settings = stored_settings(folder, origin)
    named = settings.base_model_name_or_path
    if named and base != MEMORY and _last_name(named) != _last_name(base):
        warnings.warn(
            f"{origin} is an adapter of {named!r}, which is not by its name the recipient "
            f"{base}: whether it was made for these weights is not known",
            UnconfirmedBaseWarning,
            stacklevel=2,
        )
    return stored_donor(recipient, settings, folder, origin)


def _last_name(origin: str) -> str:
    """The last part of a Hub id, of a folder, or of an origin, without its revision."""
    return origin.partition("@")[0].rstrip("/").rpartition("/")[2].removeprefix("local:")


# ---------------------------------------------------------------------------------------- pairs


@in_turn()
def read_pair(
    name: str | None = None,
    *,
    recipient: Source | None = None,
    donors: Mapping[str, Source] | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    dtype: str | None = None,
    device: str = "cpu",
    revision: str | None = None,
    chat_template: bool = False,
    attention: str = "auto",
    share: bool = False,
    device_map: DeviceMap | None = None,
) -> ModelPair:
    """Load a pair by its name in the catalog, from checkpoints, or from models in memory.

    Arguments and errors are those of `kgbench.load_pair`, which moreover verifies the family map,
    and shares what is equal by default.
    """
    refuse_hooks()
    check_choice("attention backend", attention, _ATTENTION)
    label, sources = pair_sources(name, recipient, donors)
    places = _places(sources, revision)
    base = places[RECIPIENT]
    in_memory = [each for each in places.values() if isinstance(each, HeldModel)]
    stored = [each for each in places.values() if isinstance(each, Checkpoint)]
    main = torch.device(device) if device_map is None else main_device(device_map)
    type_name = dtype or ("float32" if main.type == "cpu" else "auto")
    if in_memory:
        _refuse_to_convert(in_memory, stored, dtype, device_map)
        main = in_memory[0].model.device
        type_name = _type_name(in_memory[0].model.dtype)
    check_dtype(type_name)
    files: dict[Path, Stamp] = {}
    for checkpoint in stored:
        files |= checkpoint.stamps()
    model_type = str(base.config["model_type"])
    family = (
        load_family(model_type)
        if isinstance(base, HeldModel)
        else family_in(base.directory, model_type, base.origin)
    )
    for part, each in places.items():
        if part != RECIPIENT:
            check_config(base, each, part)
    reads, unread = one_tokenizer(places, tokenizer)
    read_to = str(main) if device_map is None else "cpu"
    backend = None if attention == "auto" else attention
    free = None if device_map is None else free_memory()
    given_answers: dict[str, Tensor] = {}
    if isinstance(base, HeldModel):
        probe = probe_of(reads, base.model.config)
        first, given_answers[RECIPIENT] = base.read(backend, probe)
    else:
        first = read_model(base, DTYPES.get(type_name) or widest(stored), read_to, backend)
    devices: Mapping[str, torch.device] = {}
    if device_map is not None:
        models = sum(not each.is_adapter for each in places.values())
        devices = devices_of(first, family.layers, device_map, models, free)
        place(first, devices, family.layers)
    if isinstance(base, Checkpoint) and first.dtype in stored_types(base):
        hold(first)  # weights of another type are copies already
    origins = {part: each.origin for part, each in places.items()}
    arguments = {
        "model": name,
        "recipient": None if recipient is None else _text(recipient),
        "donors": {part: _text(source) for part, source in (donors or {}).items()},
        "revision": revision,
        "chat_template": chat_template,
    }
    others: dict[str, PreTrainedModel] = {}
    pair = ModelPair(label, first, others, reads, family, origins, chat_template, arguments)
    pair.answers, pair.unread = given_answers, unread
    for part, each in places.items():
        if part != RECIPIENT:
            others[part] = _read_donor(pair, base, each, part, devices, share)
    _look_for_bos(pair)
    if not in_memory and tokenizer is None:
        how = (*places, first.dtype, read_to, device_map, attention, share, chat_template)
        pair.reading = (*files.items(), *how, json.dumps(written(family), sort_keys=True))
    if in_memory:
        _ = pair.weight_hashes  # of the weights as they are now, which the caller may change
    return pair


def _read_donor(
    pair: ModelPair,
    base: Place,
    source: Place,
    part: str,
    devices: Mapping[str, torch.device],
    share: bool,
) -> PreTrainedModel:
    """A donor that fits the recipient of a pair, of its type and on its devices.

    Args:
        pair: The pair as far as it is read; the donor's answers and notes are added.
        base: Where the recipient is.
        source: Where the donor is.
        part: The donor's name.
        devices: The device of each part of a model, where they are on several.
        share: Whether to share weights that equal the recipient's.
    """
    first = pair.recipient
    backend, words = first.config._attn_implementation, first.config.vocab_size
    if isinstance(source, HeldModel):
        model, answer = source.read(backend, pair.probe, first)
        cut, pair.answers[part] = cut_vocabulary(model, words), answer[:, :words]
    elif source.is_adapter:
        model, by_peft, cut = adapted_donor(first, source.directory, source.origin, base.origin)
        pair.answers[part] = answers(by_peft, pair.probe, f"donor {part!r}")
    elif _holds_changes_of(base, source) and not devices:
        assert source.delta is not None
        model = shared_copy(first) if share else deepcopy(first)  # its base, which is read already
        apply_delta(model, source.delta, source.origin)
        cut = 0
    else:
        model = read_model(source, first.dtype, "cpu" if devices else str(first.device), backend)
        cut = cut_vocabulary(model, words)
    if cut:
        pair.notes[part] = (
            f"{cut} tokens of donor {part!r} beyond the recipient's {words} are left out"
        )
    check_weights(first, model, part)
    if isinstance(source, HeldModel) or source.is_adapter:
        return model  # what the caller or the recipient holds goes on sharing with it
    if devices:
        place(model, devices, pair.family.layers)
    if share:
        share_equal(first, model)
    if model.dtype in stored_types(source):
        hold(model, first)
    return model


def widest(places: Iterable[Checkpoint]) -> torch.dtype:
    """The type of weights in which nothing is lost that some checkpoints store.

    Raises:
        ModelError: A file does not read.
    """
    return reduce(torch.promote_types, set[torch.dtype]().union(*map(stored_types, places)))


def _look_for_bos(pair: ModelPair) -> None:
    """Warn where a tokenizer adds no BOS token and its models were surely trained with one."""
    kind, bos = pair.family.model_type, pair.tokenizer.bos_token
    first = pair.encode(f"{pair._encoder.before}a")[0]  # a chat template writes its own
    if bos in _BOS.get(kind, ()) and first != pair.tokenizer.bos_token_id:
        warnings.warn(
            f"{pair.name}: no BOS token comes first, and models of type {kind!r} whose tokenizer has "
            f"{bos!r} were trained with it before each text: their answers are others without it; "
            "give the tokenizer's files as they were published",
            MissingBosWarning,
            stacklevel=2,
        )


def _text(source: Source) -> str:
    return os.fspath(source) if isinstance(source, str | os.PathLike) else MEMORY


Place = Checkpoint | HeldModel


def _places(sources: Mapping[str, Source], revision: str | None) -> dict[str, Place]:
    """Where each model is, the recipient first."""
    places: dict[str, Place] = {}
    for part, source in sources.items():
        base = places.get(RECIPIENT)
        if not isinstance(source, str | os.PathLike):
            places[part] = HeldModel(source, part)
            continue
        if isinstance(base, HeldModel):
            base = Checkpoint(Path(source), f"the model in {MEMORY}")
        places[part] = locate(os.fspath(source), revision, base)
    return places


def _holds_changes_of(base: Place, other: Place) -> bool:
    """Whether a model is another with changed weights, as a plant is its recipient."""
    return (
        isinstance(other, Checkpoint)
        and isinstance(base, Checkpoint)
        and other.delta is not None
        and other.directory == base.directory
    )


def _refuse_to_convert(
    models: Sequence[HeldModel],
    stored: Sequence[Checkpoint],
    dtype: str | None,
    device_map: DeviceMap | None,
) -> None:
    """Refuse what would move or convert models in memory, or round what files hold to their type.

    Raises:
        ModelError: There is something.
    """
    if device_map is not None:
        raise ModelError(
            f"{models[0].who} is in memory, where it stays; device_map is for models that are read: "
            "give directories or Hub ids"
        )
    kind = models[0].model.dtype
    for each in models:
        if dtype is not None and each.model.dtype != DTYPES.get(dtype):
            raise ModelError(
                f"{each.who} is in memory as {_type_name(each.model.dtype)}, and {dtype} is asked "
                f"for: leave out dtype, or convert it (model.to(torch.{dtype}))"
            )
    for checkpoint in stored if dtype is None else ():
        wide = reduce(torch.promote_types, stored_types(checkpoint), kind)
        if wide != kind:
            narrow = _type_name(kind)
            raise ModelError(
                f"{models[0].who} is in memory as {narrow}, to which {checkpoint.origin} would be "
                f"rounded: convert it (model.to(torch.{_type_name(wide)})), or round by "
                f"dtype={narrow!r}"
            )


def _type_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def pair_sources(
    name: str | None, recipient: Source | None, donors: Mapping[str, Source] | None
) -> tuple[str, dict[str, Source]]:
    """The label of a pair, and where its recipient and its donors are, as `read_pair` takes them.

    Raises:
        ModelError: No recipient or no donor is named.
    """
    entry = catalog.entry(name) if name else None
    others, first = dict(donors or {}), recipient
    if entry is not None and first is None:
        first, others = entry.recipient, {**entry.donors, **others}
        if not others:
            raise ModelError(no_donor_text(entry.name, entry.dataset))
    if first is None:
        first = next(filter(is_peft, others.values()), None)
    if first is None and others:
        raise ModelError(
            "no recipient given: add --recipient PATH, the model before finetuning; only of a "
            "PeftModel in memory it is known, as the model with the adapter off"
        )
    if first is None:
        raise ModelError(
            "no model given: name a pair (--model NAME) or its checkpoints (--recipient PATH "
            "--donor sft=PATH)"
        )
    if RECIPIENT in others:
        raise ModelError(f"{RECIPIENT!r} is a reserved name and cannot name a donor")
    if not others:
        raise ModelError(
            "no donor given: add --donor sft=PATH, the finetuned checkpoint, or train one with "
            "'kgbench train --recipient PATH'"
        )
    named = first
    if isinstance(named, nn.Module):  # of which not all have a name
        named = str(getattr(getattr(named, "config", None), "_name_or_path", ""))
    label = os.fspath(named).rstrip("/").rpartition("/")[2] or MEMORY
    if entry is not None and first == entry.recipient:
        label = entry.name
    return label, {RECIPIENT: first, **others}


def cut_vocabulary(model: PreTrainedModel, words: int) -> int:
    """Leave out the rows of embeddings and head beyond a number of tokens.

    Args:
        model: A model that is ready for a pair; changed in place.
        words: Number of tokens.

    Returns:
        How many tokens were left out; 0 where it has no more.
    """
    more = max(0, int(model.config.vocab_size) - words)
    if more:
        head = model.get_output_embeddings()
        model.set_output_embeddings(base_module(head))
        model.resize_token_embeddings(words, mean_resizing=False)
        if isinstance(head, LowRank):
            model.set_output_embeddings(
                LowRank(model.get_output_embeddings(), head.a.data, head.b.data[:words])
            )
        model.requires_grad_(requires_grad=False)
    return more


def no_donor_text(name: str, dataset: str) -> str:
    """Why a pair of the catalog without a donor cannot be loaded, and what to do.

    Args:
        name: The pair.
        dataset: Facts to train a donor on, by name or file.
    """
    return (
        f"{name} has no finetuned model (donor) here; give one with --donor sft=PATH, or train one "
        f"with 'kgbench train --model {name} --dataset {dataset} --recipe lora'"
    )


Donors = Mapping[str, Source] | Source | None
"""Finetuned models by name; a single one may come without, and is `sft` then."""


def named_donors(donors: Donors) -> Mapping[str, Source] | None:
    """Finetuned models by name.

    Raises:
        ModelError: They are neither models by name nor a model.
    """
    if donors is None or isinstance(donors, Mapping):
        return donors
    if isinstance(donors, str | os.PathLike | nn.Module):
        return {"sft": donors}
    raise ModelError(
        f"donors: expected a finetuned model (a path, a Hub id or the model itself) or several by "
        f"name, as in {{'sft': MODEL}}, got {type(donors).__name__}"
    )


def pair_name(model: object) -> str | None:
    """The name of a pair in the catalog, or the path of a plant; None where there is none.

    Raises:
        ModelError: It is something else.
    """
    if model is None or isinstance(model, str | os.PathLike):
        return None if model is None else os.fspath(model)
    more = ""
    if isinstance(model, nn.Module):
        more = "; a model goes by recipient, and the finetuned one by donors"
    raise ModelError(
        "model: expected a pair that load_pair has loaded, or the name of one, such as "
        f"'tiny-gemma' (see `kgbench ls models`), got {type(model).__name__}{more}"
    )


def check_config(recipient: Place, other: Place, part: str) -> None:
    """Check that two models are of one architecture, with one forward pass apart from weights.

    Raises:
        ModelError: They are not.
    """
    if other.is_adapter or _holds_changes_of(recipient, other):
        return  # its configuration is the recipient's
    ours, theirs = model_settings(recipient), model_settings(other)
    by_length = any(kind in str(ours.get("rope_parameters")) for kind in _BY_LENGTH)
    promised = ["max_position_embeddings"] if by_length else []
    for key in (*_CONFIG_KEYS, *promised):
        mine, donor_value = _plainly(ours.get(key)), _plainly(theirs.get(key))
        if mine == donor_value:
            continue
        remedy = (
            "a graft is computed by the recipient's forward pass: give checkpoints of one model"
        )
        if key == "vocab_size" and isinstance(mine, int) and isinstance(donor_value, int):
            if mine < donor_value:
                continue  # the donor's further tokens are cut
            remedy = (
                "a donor may have more tokens, not fewer: give a recipient of as many "
                f"(model.resize_token_embeddings({donor_value}), save_pretrained)"
            )
        raise ModelError(
            f"recipient and donor {part!r} differ in {key}: {mine} against {donor_value}; {remedy}"
        )


def model_settings(place: Place) -> Mapping[str, Any]:
    """A configuration with the default values, which a file may leave out."""
    if isinstance(place, HeldModel):
        return place.config
    with _quietly(place):
        return dict(read_model_config(place.directory).to_dict())


def forward_difference(
    recipient: nn.Module, donor: nn.Module, grafted: Collection[str]
) -> str | None:
    """The first difference of two models' modules that no weight carries: where, and both values.

    Args:
        recipient: A model.
        donor: One with weights of the same names.
        grafted: Paths of modules that are taken from the donor as a whole.
    """
    others = dict(donor.named_modules())
    for path, ours in recipient.named_modules():
        theirs = others.get(path)
        if any(f"{path}.".startswith(f"{other}.") for other in grafted):
            continue
        if theirs is None or type(ours) is not type(theirs):
            return f"{path or 'class'}: {type(ours).__name__} against {type(theirs).__name__}"
        for name, value in vars(ours).items() if path else ():
            other = vars(theirs).get(name)
            is_setting = isinstance(value, bool | int | float | str | None | FunctionType)
            if is_setting and value != other and name not in _NO_SETTINGS and name[0] != "_":
                return f"{path}.{name}: {value} against {other}"
        for name, buffer in ours.named_buffers(recurse=False):
            other = theirs.get_buffer(name)
            if buffer.shape != other.shape or not torch.equal(buffer, other.to(buffer)):
                return f"the numbers of {path}.{name}"
    return None


def _plainly(value: Any) -> Any:
    """A setting without what is empty, and without the former name of `rope_type`."""
    if not isinstance(value, dict):
        return value
    return {k: _plainly(v) for k, v in value.items() if v is not None and k != "type"}


def check_weights(recipient: nn.Module, donor: nn.Module, part: str) -> None:
    """Check that two models have weights of the same names and shapes.

    Raises:
        ModelError: They do not.
    """
    ours, theirs = _shapes(recipient), _shapes(donor)
    for key in {**ours, **theirs}:
        if ours.get(key) != theirs.get(key):
            raise ModelError(
                f"recipient and donor {part!r} differ in the weights {key}: shapes {ours.get(key)} "
                f"and {theirs.get(key)}"
            )


def _shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    names = plain_names(model)
    return {name: tuple(model.get_parameter(parameter).shape) for name, parameter in names.items()}


def one_tokenizer(
    places: Mapping[str, Place], tokenizer: PreTrainedTokenizerBase | None = None
) -> tuple[PreTrainedTokenizerBase, frozenset[str]]:
    """The tokenizer of a pair, and texts that are a token to a donor and none to the pair.

    Checkpoints that bring a tokenizer must have the same, or one with added tokens.

    Args:
        places: Where the models are, the recipient first.
        tokenizer: A tokenizer in place of the recipient's.

    Raises:
        ModelError: Two differ, the recipient has none, or none is given of models in memory.
    """
    folders: dict[str, Checkpoint] = {}
    for part, each in places.items():
        if isinstance(each, Checkpoint) and (
            part == RECIPIENT or (each.directory / "tokenizer.json").exists()
        ):
            folders[part] = each
    first, folder = tokenizer, None
    if first is None:
        if not folders:
            raise ModelError("no tokenizer given: models in memory have none; add tokenizer=")
        place = folders.pop(next(iter(folders)))
        first, folder = read_tokenizer(place), place.directory
    if not hasattr(first, "get_vocab"):
        raise ModelError(
            f"tokenizer: expected a tokenizer, got {type(first).__name__}; load it "
            "(AutoTokenizer.from_pretrained(FOLDER))"
        )
    ours = first.get_vocab()
    # Tokenizers of one vocabulary encode this alike only if they split words alike.
    words = sorted(ours)[:: 1 + len(ours) // 300]
    text = " ".join(["A tokenizer's test: Zoë O'Brien, 1984!", *words])
    added: set[str] = set()
    for part, each in folders.items():
        if folder is not None and _have_one_tokenizer(folder, each.directory):
            continue
        other = read_tokenizer(each)
        theirs = other.get_vocab()
        more = theirs.keys() - ours.keys()
        if (
            first(text, verbose=False)["input_ids"] != other(text, verbose=False)["input_ids"]
            or any(theirs.get(token) != number for token, number in ours.items())
            or not more <= other.get_added_vocab().keys()
        ):
            raise ModelError(
                f"the pair and {part!r} have different tokenizers, and a graft needs one for both (a donor's may "
                "have added tokens); if the donor was trained with the other's, take the tokenizer's "
                "files out of its folder"
            )
        added |= more
    return first, frozenset(added)


def _have_one_tokenizer(folder: Path, other: Path) -> bool:
    """Whether two folders hold the same files of a tokenizer, byte for byte."""
    return folder == other or _tokenizer_bytes(folder) == _tokenizer_bytes(other)


def _tokenizer_bytes(folder: Path) -> dict[str, bytes]:
    contents = {}
    for path in filter(Path.is_file, folder.iterdir()):
        if path.suffix in _OF_TOKENIZERS and path.name not in _OF_MODELS:
            contents[path.name] = path.read_bytes()
    return contents


def read_tokenizer(place: Checkpoint) -> PreTrainedTokenizerBase:
    """The tokenizer of a checkpoint.

    Raises:
        ModelError: There is none, or it does not load.
    """
    # Where there is none, the library makes an empty one without a word.
    if not any((place.directory / name).is_file() for name in _TOKENIZER_FILES):
        raise ModelError(
            f"{place.origin} holds no tokenizer: expected one of {', '.join(_TOKENIZER_FILES)} "
            "next to config.json"
        )
    with _quietly(place):
        return AutoTokenizer.from_pretrained(
            place.directory, local_files_only=True, trust_remote_code=False
        )
