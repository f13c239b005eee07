"""The donors of a specification: how they are written, which one is meant, and whether they can answer."""

from __future__ import annotations

import filecmp
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from kgbench.data import Dataset, Fact, load_dataset
from kgbench.data.parts import PARTS
from kgbench.errors import InputError
from kgbench.models import catalog
from kgbench.models.trained import choose_donor, choose_donor_of, find_donor
from kgbench.runner.spec import Spec

__all__ = ["check_different", "donor_names", "read_donors", "unlearned", "with_donor"]


def read_donors(option: str, texts: Sequence[str]) -> dict[str, str]:
    """Donors by name, each given as `NAME=PATH` or as a bare path, which is that of `sft`.

    Args:
        option: The option they belong to, for messages.
        texts: The texts; in a bare path, an equals sign may stand after a slash.

    Raises:
        InputError: A text without name or path, or a name given twice.
    """
    donors: dict[str, str] = {}
    for text in texts:
        name, equals, place = (part.strip() for part in text.partition("="))
        if not equals or "/" in name:
            name, place = "sft", text.strip()
        if not name or not place:
            raise InputError(
                f"{option} {text!r}: expected NAME=PATH, such as sft=path/to/checkpoint, or only the path"
            )
        if name in donors:
            raise InputError(f"{option}: {name!r} is given twice; give it once")
        donors[name] = place
    return donors


def with_donor(spec: Spec, dataset: Dataset) -> Spec:
    """The specification with a trained donor, where none is named and the catalog's, if any, has not learned the facts.

    Args:
        spec: What is evaluated.
        dataset: Its facts.

    Returns:
        The specification as it is where a donor is named, where the catalog's donor learned the facts, and where none was trained.

    Raises:
        ModelError: Several would do, see `choose_donor`.
    """
    if spec.donors or (spec.model is None) == (spec.recipient is None):
        return spec
    if spec.recipient is not None:
        source = spec.recipient
        found = choose_donor_of(
            source, _hashes(spec, dataset), lambda: _weights(source, spec.revision)
        )
        return spec if found is None else replace(spec, donors={"sft": found.name})
    assert spec.model is not None
    entry = catalog.entry(spec.model)
    wanted = _hashes(spec, dataset)
    if entry.plant is not None or (
        entry.donors and load_dataset(entry.dataset).content_hash in wanted
    ):
        return spec
    found = choose_donor(entry.name, wanted)
    return spec if found is None else replace(spec, donors={"sft": found.name})


def _weights(source: str, revision: str | None) -> str | None:
    """Hash of a checkpoint's weights; None where it is not on this machine."""
    from kgbench.models.checkpoints import find_here
    from kgbench.models.delta import stored_hash

    found = find_here(source, revision)
    return None if found is None else stored_hash(found.directory)


def donor_names(spec: Spec) -> tuple[str, ...]:
    """Names of the donors of a specification, those of the catalog included; none where a donor is still to be trained."""
    return tuple({**_catalogued(spec), **spec.donors})


def _catalogued(spec: Spec) -> Mapping[str, str]:
    return (
        catalog.entry(spec.model).donors
        if spec.model is not None and spec.recipient is None
        else {}
    )


def check_different(spec: Spec) -> None:
    """Refuse a donor that is the recipient, as far as names and files on this machine tell.

    Raises:
        InputError: A donor has the recipient's name, folder or weights.
    """
    recipient = spec.recipient or (
        catalog.entry(spec.model).recipient if spec.model is not None else None
    )
    for name, source in spec.donors.items() if recipient is not None else ():
        if source == recipient or _same_weights(_folder(str(recipient)), _folder(source)):
            raise InputError(
                f"donor {name!r} ({source}) has the recipient's weights ({recipient}), so that there is nothing to compare: "
                "give the checkpoint before finetuning by --recipient and the one after by --donor"
            )


def _folder(source: str) -> Path:
    return catalog.zoo_path(source) or find_donor(source) or Path(source).expanduser()


def _same_weights(one: Path, other: Path) -> bool:
    """Whether two folders are one, or their weight files are equal byte for byte."""
    if not (one.is_dir() and other.is_dir()):
        return False
    if one.samefile(other):
        return True
    names = [sorted(path.name for path in folder.glob("*.safetensors")) for folder in (one, other)]
    return (
        names[0] == names[1] != [] and not filecmp.cmpfiles(one, other, names[0], shallow=False)[1]
    )


def unlearned(spec: Spec, dataset: Dataset) -> str | None:
    """A warning where the donor learned none of the facts; None where it learned some, and where its facts are not known.

    Args:
        spec: What is evaluated.
        dataset: Its facts.
    """
    spec = with_donor(spec, dataset)
    if spec.model is None or spec.dataset is None or spec.donors or not _catalogued(spec):
        return None
    entry = catalog.entry(spec.model)
    learned = load_dataset(entry.dataset)
    taught = {
        _pair(learned, fact)
        for fact in learned.facts
        if entry.facts is None or fact.id in entry.facts
    }
    if taught & {_pair(dataset, fact) for fact in dataset.facts}:
        return None
    remedy = "leave out --dataset, or give a donor that learned them (--donor PATH)"
    if entry.plant is None:
        remedy += f" or train one: kgbench train --model {entry.name} --dataset {spec.dataset} --recipe aggressive"
    return (
        f"the donor of {entry.name} learned {entry.dataset}, and none of the facts of {spec.dataset} is among these: expect figures "
        f"near chance, and undefined ratios; {remedy}"
    )


def _pair(dataset: Dataset, fact: Fact) -> tuple[str, str]:
    return fact.fields[dataset.subject], fact.fields[dataset.object]


def _hashes(spec: Spec, dataset: Dataset) -> set[str]:
    """Content hashes of the facts, and where they are half of a data set, of the whole."""
    whole, _, part = (spec.dataset or "").rpartition(":")
    return {
        dataset.content_hash,
        *((load_dataset(whole, spec.imports).content_hash,) if whole and part in PARTS else ()),
    }
