"""`--model kgbench`: a model pair that answers lm-eval's requests under a graft."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from jinja2.exceptions import TemplateError
from lm_eval.api.instance import Instance
from lm_eval.api.model import CacheHook, TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils import (
    handle_stop_sequences,
    normalize_gen_kwargs,
    postprocess_generated_text,
    resolve_max_length,
)
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

from kgbench.engine import Budget, Engine
from kgbench.engine.generation import end_tokens
from kgbench.errors import InputError
from kgbench.harness.arguments import read_arguments
from kgbench.harness.continuation_scores import Answering
from kgbench.harness.encoded_requests import Passage, Reader, TaskDocument
from kgbench.harness.metrics import TokenScore
from kgbench.harness.rows import LOADED, identity
from kgbench.localizers import InterventionLocalizer, create, fingerprint
from kgbench.models.pair import ModelPair
from kgbench.runner import Pairs, Settings
from kgbench.runner.sources import Sources
from kgbench.runner.third_party_watch import Watch
from kgbench.version import __version__

DEFAULT_TOKENS = 256
"""Number of generated tokens where a task gives none: lm-eval's default."""

_IDLE = ("do_sample", "temperature", "top_p", "top_k")
"""Arguments that matter only where tokens are sampled."""


@register_model("kgbench")
class KgbenchLM(TemplateLM):
    """A model pair that answers under a graft of a localizer.

    Context and continuation of a request are one row of tokens. LT is the token that predicts the
    first token of the continuation; the model argument `continuation` is the treatment of later
    ones. Regions other than LT and BOS come from the task's rows.

    Args:
        **arguments: Model arguments, see `Arguments`.

    Raises:
        InputError: An argument is wrong, or a checkpoint does not load; on answering, a third-party
            localizer changed the models or the process.
    """

    chat_template_args: Mapping[str, Any] = {}
    """Read by lm-eval's method of `apply_chat_template`."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__()
        self.arguments = options = read_arguments(arguments)
        self._watch = Watch(options.localizer)
        localizer = create(options.localizer, options.localizer_args, options.seed)
        if not isinstance(localizer, InterventionLocalizer):
            raise InputError(
                f"localizer {localizer.name!r} ranks sites and does not change the model's "
                "outputs; give one that intervenes, such as dynamic_graft, or rank with kgbench "
                "eval --suite budget"
            )
        self.localizer = localizer
        sources = Sources(
            model=options.pair,
            recipient=options.pretrained,
            donors=options.donor,
            revision=options.revision,
        )
        settings = Settings(
            options.batch_size, options.device, options.executor, attention=options.attention
        )
        self.pair: ModelPair = Pairs().load(sources, settings, options.dtype)
        self._watch.add(self.pair)
        self.tokenizer = self.pair.tokenizer
        budget = Budget.on(self.pair.device, self.pair.width, options.batch_size)
        engine = Engine(self.pair, options.executor, budget)
        self.answering = Answering(engine, self.localizer, options.continuation)
        self.reader = Reader(self.tokenizer, self.prefix_token_id, self.max_length)
        self._device = self.pair.device

    def loglikelihood(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[TokenScore]:
        """Scores of continuations under the graft."""
        passages = []
        for request in _checked(requests):
            passages.append(self.reader.passage(request.args[0], request.args[1], _source(request)))
        return self._graft_scores(passages, disable_tqdm)

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
        """Greedy continuations under the graft.

        Every step runs all unfinished texts of a task again, so that any localizer works.

        Raises:
            InputError: The task asks for sampling or more tokens than the model reads.
        """
        ends = {self.eot_token_id, *end_tokens(self.pair)}
        starts = [self._start(request) for request in _checked(requests)]
        tokens: list[list[int]] = [[] for _ in starts]

        def is_finished(i: int) -> bool:
            text, (_, stops, most) = self._decoded(tokens[i]), starts[i]
            ended = tokens[i][-1] in ends or len(tokens[i]) == most
            return ended or any(stop in text for stop in stops)

        for unfinished, answering, bar in self._tasks([start[0] for start in starts], disable_tqdm):
            while unfinished:
                running = [starts[i][0].extended(tokens[i]) for i in unfinished]
                following = answering.next_tokens(running, self._graft)
                for i, token in zip(unfinished, following, strict=True):
                    tokens[i].append(token)
                unfinished = [i for i in unfinished if not is_finished(i)]
                bar.update(len(running) - len(unfinished))
        texts = []
        for generated, (_, stops, _) in zip(tokens, starts, strict=True):
            text = postprocess_generated_text(self._decoded(generated), stops, None)
            texts.append(str(text))
        return texts

    def _start(self, request: Instance) -> tuple[Passage, list[str], int]:
        """A context, the stop sequences of its continuation, and how many tokens that may have."""
        (context, arguments), source = request.args, _source(request)
        options = normalize_gen_kwargs(
            {**arguments, "until": arguments.get("until") or []}, DEFAULT_TOKENS
        )
        if options.get("do_sample") or options.get("temperature", 0.0):
            raise InputError(
                f"{source.label} asks for sampled text, but generation under a graft is greedy: "
                "--gen_kwargs do_sample=False"
            )
        for name in options:
            if name not in (*_IDLE, "until", "max_gen_toks"):
                raise InputError(
                    f"{source.label}: generation under a graft takes until and max_gen_toks, "
                    f"not {name!r}"
                )
        most, end = options["max_gen_toks"], self._decoded([self.eot_token_id], skip=False)
        stops = list(handle_stop_sequences(options["until"], eos=end))
        return self.reader.context(context, most, source), stops, most

    def _decoded(self, tokens: Sequence[int], skip: bool = True) -> str:
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=skip))

    def _loglikelihood_tokens(self, requests: Any, **_: Any) -> list[TokenScore]:
        raise NotImplementedError("requests are read as texts, by `loglikelihood`")

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
        length = self.arguments.max_length or most
        if length > most:
            raise InputError(f"max_length={length}: {self.pair.name} reads at most {most} tokens")
        return length

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
        try:
            return str(HFLM.apply_chat_template(self, chat_history, add_generation_prompt))
        except TemplateError as error:
            raise InputError(
                f"the chat template of {self.pair.name} refuses the conversation: {error}"
            ) from error

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

    def _graft_scores(self, passages: Sequence[Passage], quiet: bool) -> list[TokenScore]:
        scores: dict[int, TokenScore] = {}
        for numbers, answering, bar in self._tasks(passages, quiet):
            task = [passages[i] for i in numbers]
            scores.update(
                zip(numbers, answering.scores(task, self._graft, bar.update), strict=True)
            )
        return list(map(scores.__getitem__, range(len(passages))))

    def _tasks(
        self, passages: Sequence[Passage], quiet: bool
    ) -> Iterator[tuple[list[int], Answering, tqdm[Any]]]:
        """Numbers of each task's passages, the method fitted on them alone, and a progress bar.

        Raises:
            InputError: A third-party localizer changed the models or the process.
        """
        by_task: dict[str, list[int]] = {}
        for i, passage in enumerate(passages):
            by_task.setdefault(passage.source.task, []).append(i)
        label = f"{self.localizer.name}, {self._graft}"
        with tqdm(total=len(passages), desc=label, disable=quiet) as bar:
            for numbers in by_task.values():
                yield numbers, self.answering.fitted([passages[i] for i in numbers]), bar
        self._watch.check()

    @property
    def _graft(self) -> str:
        if self.arguments.graft is None:
            raise InputError(
                "which graft? Give --model_args graft=FE+LT or another expression; graft=PRE or "
                "graft=SFT for a model by itself"
            )
        return self.arguments.graft


def _checked(requests: list[Instance]) -> list[Instance]:
    """Detect stale entries in lm-eval's request cache.

    `--cache_requests` looks requests up by the name of the task, also after its data set or prompt
    was edited. But lm-eval loads the present rows first, so that these are in `LOADED`.

    Raises:
        InputError: A row is of no loaded version of a data set and prompt that was loaded.
    """
    loaded = {version[:2] for version in LOADED.values()}
    for source in map(_source, requests):
        version = identity(source.document) if source.is_ours else ()
        if version[:2] in loaded and version not in LOADED.values():
            raise InputError(
                f"the requests on {', '.join(version[:2])} are of another version of its rows, "
                "kept by --cache_requests; run once with --cache_requests refresh"
            )
    return requests


def _source(request: Instance) -> TaskDocument:
    document = request.doc if isinstance(request.doc, dict) else {}
    return TaskDocument(str(request.task_name), document, request.doc_id)
