"""`--model kgbench`: a model pair that answers lm-eval's requests under a graft."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

from jinja2.exceptions import TemplateError
from lm_eval.api.instance import Instance
from lm_eval.api.model import CacheHook, TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import (
    handle_stop_sequences,
    normalize_gen_kwargs,
    postprocess_generated_text,
    resolve_max_length,
)
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

from kgbench.engine import Budget, Engine
from kgbench.errors import InputError
from kgbench.harness.answering import Answering
from kgbench.harness.arguments import read_arguments
from kgbench.harness.metrics import TokenScore
from kgbench.harness.passages import Passage, Reader, TaskDocument
from kgbench.harness.rows import LOADED, is_loaded
from kgbench.localizers import InterventionLocalizer, create, fingerprint
from kgbench.models.pair import ModelPair
from kgbench.runner import Pairs, Settings, Spec
from kgbench.runner.guard import Watch
from kgbench.version import __version__

DEFAULT_TOKENS = 256
"""Number of generated tokens where a task gives none: lm-eval's default."""

_IDLE = ("do_sample", "temperature", "top_p", "top_k")
"""Arguments that matter only where tokens are sampled."""

_LOG = logging.getLogger(__name__)


@dataclass
class _Text:
    """A context and the tokens generated so far."""

    passage: Passage
    stops: Sequence[str]
    most: int
    tokens: list[int] = field(default_factory=list)

    def take(self, token: int, ends: Container[int], text: str) -> bool:
        """Append a token; `text` is the generated text with it. Returns whether to continue."""
        self.tokens.append(token)
        self.passage = self.passage.extended(token)
        return (
            token not in ends
            and len(self.tokens) < self.most
            and not any(stop in text for stop in self.stops)
        )


@register_model("kgbench")
class KgbenchLM(TemplateLM):
    """A model pair that answers under a graft of a localizer.

    Context and continuation of a request are one row of tokens. LT is the token that predicts the
    first token of the continuation; the model argument `continuation` is the treatment of later
    ones. Regions other than LT and BOS come from the task's rows.

    Args:
        **given: Model arguments, see `Arguments`.

    Raises:
        InputError: An argument is wrong, or a checkpoint does not load; on answering, a third-party
            localizer changed the models or the process.
    """

    def __init__(self, **given: Any) -> None:
        super().__init__()
        self.arguments = own = read_arguments(given)
        self._watch = Watch(own.localizer)
        localizer = create(own.localizer, own.localizer_args, own.seed)
        if not isinstance(localizer, InterventionLocalizer):
            raise InputError(
                f"localizer {localizer.name!r} ranks sites and does not change the model's "
                "outputs; give one that intervenes, such as dynamic_graft, or rank with kgbench "
                "eval --suite budget"
            )
        self.localizer = localizer
        spec = Spec(
            model=own.pair,
            recipient=own.pretrained,
            donors=own.donor,
            revision=own.revision,
            dtype=own.dtype,
            seed=own.seed,
        )
        settings = Settings(own.batch_size, own.device, own.executor, attention=own.attention)
        self.pair: ModelPair = Pairs().load(spec, settings)
        self._watch.add(self.pair)
        self.tokenizer = self.pair.tokenizer
        budget = Budget.on(self.pair.device, self.pair.width, own.batch_size)
        engine = Engine(self.pair, own.executor, budget)
        self.answering = Answering(engine, self.localizer, own.continuation)
        self.reader = Reader(self.tokenizer, self.prefix_token_id, self.max_length)
        self._device = self.pair.device

    def loglikelihood(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[TokenScore]:
        """Scores of continuations under the graft."""
        return self._graft_scores(list(map(self._passage, _checked(requests))), disable_tqdm)

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """Log-likelihoods (nats) of whole texts in windows of the model's length.

        LT of a window is the token before it.
        """
        passages: list[Passage] = []
        numbers: list[int] = []
        for number, request in enumerate(_checked(requests)):
            windows = get_rolling_token_windows(
                token_list=self.reader.ids(*request.args),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            )
            for head, rest in map(make_disjoint_window, windows):
                passages.append(self.reader.tokens(head, rest, _source(request)))
                numbers.append(number)
        totals = [0.0] * len(requests)
        scores = self._graft_scores(passages, disable_tqdm)
        for number, score in zip(numbers, scores, strict=True):
            totals[number] += score[0]
        return totals

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Greedy continuations under the graft."""
        contexts = [(*request.args, _source(request)) for request in _checked(requests)]
        texts = [""] * len(contexts)
        ends = {self.eot_token_id}
        for model in (self.pair.recipient, *self.pair.donors.values()):
            if model.generation_config is not None:
                own = model.generation_config.eos_token_id
                ends.update(own if isinstance(own, list) else [] if own is None else [own])
        label = f"{self.localizer.name}, {self._graft()}"
        with tqdm(total=len(contexts), desc=label, disable=disable_tqdm) as bar:
            for numbers in _by_task([source for *_, source in contexts]):
                generated = self._generated([contexts[i] for i in numbers], ends, bar.update)
                for i, text in zip(numbers, generated, strict=True):
                    texts[i] = text
        self._watch.check()
        return texts

    def _generated(
        self,
        requests: Sequence[tuple[str, Mapping[str, Any], TaskDocument]],
        ends: Container[int],
        progress: Callable[[int], object],
    ) -> list[str]:
        """Continue contexts of one task until the first stop sequence, which is cut off.

        Every step runs all unfinished texts again, so that any localizer works.

        Args:
            requests: Contexts, lm-eval's arguments of generation, and their sources.
            ends: Ids of the tokens that end a text.
            progress: Progress callback: number of further texts that are done.

        Raises:
            InputError: The task asks for sampling or more tokens than the model reads.
        """
        texts = [self._start(*request) for request in requests]
        answering = self.answering.fitted([text.passage for text in texts])
        unfinished = list(texts)
        while unfinished:
            running, unfinished = unfinished, []
            tokens = answering.next_tokens([text.passage for text in running], self._graft())
            for text, token in zip(running, tokens, strict=True):
                if text.take(token, ends, self._decoded([*text.tokens, token])):
                    unfinished.append(text)
            progress(len(running) - len(unfinished))
        decoded = ((self._decoded(text.tokens), list(text.stops)) for text in texts)
        return [str(postprocess_generated_text(text, stops, None)) for text, stops in decoded]

    def _start(self, context: str, arguments: Mapping[str, Any], source: TaskDocument) -> _Text:
        asked = normalize_gen_kwargs(
            {**arguments, "until": arguments.get("until") or []}, DEFAULT_TOKENS
        )
        if asked.get("do_sample") or asked.get("temperature", 0.0):
            raise InputError(
                f"{source.label} asks for sampled text, but generation under a graft is greedy: "
                "--gen_kwargs do_sample=False"
            )
        for name in asked:
            if name not in (*_IDLE, "until", "max_gen_toks"):
                raise InputError(
                    f"{source.label}: generation under a graft takes until and max_gen_toks, "
                    f"not {name!r}"
                )
        most, end = asked["max_gen_toks"], self._decoded([self.eot_token_id], skip=False)
        stops = handle_stop_sequences(asked["until"], eos=end)
        return _Text(self.reader.context(context, most, source), stops, most)

    def _decoded(self, tokens: Sequence[int], skip: bool = True) -> str:
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=skip))

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], **_: Any
    ) -> list[TokenScore]:
        passages = []
        for i, (_, head, rest) in enumerate(requests):
            passages.append(self.reader.tokens(head, rest, TaskDocument("tokens", {}, i)))
        return self._graft_scores(passages)

    @property
    def eot_token_id(self) -> int:
        """Id of the token that ends a text."""
        end = self.pair.tokenizer.eos_token_id
        if end is None:
            raise InputError(
                f"the tokenizer of {self.pair.name} has no token that ends a text, which lm-eval "
                "needs; set its eos_token"
            )
        return int(end)

    @property
    def prefix_token_id(self) -> int:
        """Id of the token in place of an empty context: BOS where there is one."""
        begin = self.pair.tokenizer.bos_token_id
        return int(begin) if begin is not None else self.eot_token_id

    @cached_property
    def max_length(self) -> int:
        """Maximum number of tokens."""
        most = int(resolve_max_length(self.pair.recipient.config, self.pair.tokenizer))
        asked = self.arguments.max_length
        if asked is not None and asked > most:
            raise InputError(f"max_length={asked}: {self.pair.name} reads at most {most} tokens")
        return asked or most

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **_: Any
    ) -> list[int]:
        """Token ids of a text, as lm-eval's Hugging Face model encodes it."""
        return self.reader.ids(string, add_special_tokens)

    @property
    def tokenizer_name(self) -> str:
        """Identifier of the tokenizer in the keys of lm-eval's request cache."""
        return self.pair.tokenizer_hash

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """A conversation in the chat template, without the system message if it takes none."""
        if not self.pair.tokenizer.chat_template:
            raise InputError(
                f"the tokenizer of {self.pair.name} has no chat template; "
                "leave --apply_chat_template out"
            )
        write = partial(
            self.pair.tokenizer.apply_chat_template,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )
        try:
            return str(write(chat_history))
        except TemplateError as error:
            others = [message for message in chat_history if message["role"] != "system"]
            if others == chat_history:
                raise InputError(
                    f"the chat template of {self.pair.name} refuses the conversation: {error}"
                ) from error
            _LOG.warning("the chat template takes no system message, which is left out: %s", error)
            return str(write(others))

    def set_cache_hook(self, cache_hook: CacheHook) -> None:
        """Refuse lm-eval's cache of answers, whose key holds neither model nor graft."""
        if cache_hook.dbdict is not None:
            raise InputError(
                "--use_cache is refused: its key is the text of a request alone, so that it would "
                "return the answers of one graft for another"
            )
        super().set_cache_hook(cache_hook)

    def get_model_info(self) -> dict[str, Any]:
        """Entries of lm-eval's results: the pair with its fingerprint, the localizer, the graft."""
        hashes = self.pair.weight_hashes
        lines = [f"{name} {digest}" for name, digest in sorted(hashes.items())]
        version = (self.localizer.version, fingerprint(self.arguments.localizer))
        joined = "\n".join([*lines, f"tokenizer {self.pair.tokenizer_hash}"])
        return {
            "kgbench_version": __version__,
            "localizer": self.localizer.name,
            "localizer_version": " ".join(filter(None, version)),
            "localizer_parameters": self.localizer.parameters(),
            "graft": self.arguments.graft,
            "continuation": self.arguments.continuation,
            "pair": self.pair.name,
            "pair_fingerprint": hashlib.sha256(joined.encode()).hexdigest(),
            "pair_origins": dict(self.pair.origins),
            "pair_weights": dict(hashes),
            "executor": self.answering.engine.executor,
            "model_num_parameters": self.pair.recipient.num_parameters(),
            "model_dtype": str(self.pair.dtype).removeprefix("torch."),
            "model_revision": self.arguments.revision,
        }

    def _graft_scores(self, passages: Sequence[Passage], quiet: bool = False) -> list[TokenScore]:
        """Scores under the graft; a method is fitted on each task alone, whatever else is run."""
        graft = self._graft()
        by_passage: dict[int, TokenScore] = {}
        label = f"{self.localizer.name}, {graft}"
        with tqdm(total=len(passages), desc=label, disable=quiet) as bar:
            for numbers in _by_task([passage.source for passage in passages]):
                task = [passages[i] for i in numbers]
                scores = self.answering.fitted(task).scores(task, graft, bar.update)
                by_passage.update(zip(numbers, scores, strict=True))
        self._watch.check()
        return list(map(by_passage.__getitem__, range(len(passages))))

    def _graft(self) -> str:
        if self.arguments.graft is None:
            raise InputError(
                "which graft? Give --model_args graft=FE+LT or another expression; graft=PRE or "
                "graft=SFT for a model by itself"
            )
        return self.arguments.graft

    def _passage(self, request: Instance) -> Passage:
        context, continuation = request.args[:2]
        return self.reader.passage(context, continuation, _source(request))


def _checked(requests: list[Instance]) -> list[Instance]:
    """Detect stale entries in lm-eval's request cache.

    `--cache_requests` looks requests up by the name of the task, also after its data set or prompt
    was edited. But lm-eval loads the present rows first, so that these are in `LOADED`.

    Raises:
        InputError: A document is of no loaded version of a data set and prompt that was loaded.
    """
    loaded = {(dataset, prompt) for (_, prompt), (dataset, _) in LOADED.items()}
    stale: set[tuple[str, str]] = set()
    for source in map(_source, requests):
        document = source.document
        if source.is_ours and not is_loaded(document):
            stale.add((document["dataset"], document["prompt"]))
    for dataset, prompt in sorted(stale & loaded):
        raise InputError(
            f"the requests on {dataset}, {prompt} are of another version of its rows, kept by "
            "--cache_requests; run once with --cache_requests refresh"
        )
    return requests


def _by_task(sources: Sequence[TaskDocument]) -> Iterable[list[int]]:
    """Numbers of each task's requests."""
    numbers: dict[str, list[int]] = {}
    for i, source in enumerate(sources):
        numbers.setdefault(source.task, []).append(i)
    return numbers.values()


def _source(request: Instance) -> TaskDocument:
    document = request.doc if isinstance(request.doc, dict) else {}
    return TaskDocument(str(request.task_name), document, request.doc_id)
