"""The engine: from treatments of prompts to next-token logits, with one of three executors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace

import torch
from jaxtyping import Float

from kgbench.data import Prompt
from kgbench.engine.batch_rows import read_activations, run_rows
from kgbench.engine.edits import Hook, Treatment
from kgbench.engine.forward import Wiring
from kgbench.engine.out_of_memory import less_at_once
from kgbench.engine.packed import run_packed
from kgbench.engine.plan import Answers, Budget, Chunk, Plan, make_plan
from kgbench.engine.selftest import packed_agrees, stages_agree
from kgbench.engine.sequential import run_sequential
from kgbench.engine.treatment import Configuration, graft_treatments, parted
from kgbench.engine.weights import equal_slots
from kgbench.errors import ModelError, check_choice
from kgbench.models.in_memory import refuse_hooks
from kgbench.models.pair import ModelPair, check_pair
from kgbench.sites import split_grafts

EXECUTORS: Mapping[str, Callable[[Wiring, Plan, Budget], Iterator[Chunk]]] = {
    "packed": run_packed,
    "rows": run_rows,
    "sequential": run_sequential,
}

_CHOSEN: ContextVar[tuple[str, Budget | None]] = ContextVar("chosen", default=("auto", None))


@contextmanager
def choosing(executor: str, budget: Budget) -> Iterator[None]:
    """Set the default executor and budget of all engines created in the block.

    Localizers create engines of their own, which take these defaults.
    """
    token = _CHOSEN.set((executor, budget))
    try:
        yield
    finally:
        _CHOSEN.reset(token)


def chosen_budget(pair: ModelPair) -> Budget:
    """Default budget: that of the enclosing `choosing` block, otherwise that of the device."""
    return _CHOSEN.get()[1] or Budget.on(pair.device, pair.width)


class Engine:
    """Runs plans on one model pair.

    Args:
        pair: The models.
        executor: `packed`, `rows`, `sequential`, or `auto`: packed if the pair's models pass its
            self-test, otherwise rows. Default: that of `choosing`, otherwise `auto`.
        budget: Limits of one forward. Default: that of `choosing`, otherwise that of the device.

    Raises:
        UnknownNameError: There is no such executor.
        ModelError: The executor is `packed`, and the pair's models fail its self-test.
    """

    def __init__(
        self, pair: ModelPair, executor: str | None = None, budget: Budget | None = None
    ) -> None:
        executor = executor or _CHOSEN.get()[0]
        check_choice("executor", executor, (*EXECUTORS, "auto"))
        self.pair, self.budget = pair, budget or chosen_budget(pair)
        self.executor, self.reason = self._choose(executor)
        # Whether layers may compute other rows than others do.
        staged = self.executor == "packed" and stages_agree(pair)
        self.wiring = Wiring(pair, staged=staged)

    def _choose(self, executor: str) -> tuple[str, str]:
        """The executor, and for `auto` the reason if it is not packed."""
        if executor not in ("auto", "packed"):
            return executor, ""
        reason = packed_agrees(self.pair)
        if reason is None:
            return "packed", ""
        if executor == "packed":
            raise ModelError(
                f"executor 'packed' cannot run {self.pair.name}: {reason}; take 'auto' or 'rows'"
            )
        return "rows", f"packed: {reason}"

    def plan(
        self,
        prompts: Sequence[Prompt],
        configurations: Sequence[Configuration | str],
        readouts: Sequence[Sequence[int]] | None = None,
        stems: Sequence[int] | None = None,
    ) -> Plan:
        """Plan the same configurations for every prompt.

        Args:
            prompts: Prompts of any lengths.
            configurations: Graft expressions, `PRE` or `SFT`.
            readouts: Tokens to read out, per prompt; by default where its answer is read.
            stems: Number of the text that each prompt goes on from, see `make_plan`.
        """
        pair = parted(self.pair, configurations)
        if pair is not self.pair:
            self.pair, self.wiring = pair, Wiring(pair, staged=self.wiring.staged)
        treatments = []
        for configuration in configurations:
            treatments.append(graft_treatments(self.pair, prompts, configuration))
        return self.plan_treatments(prompts, treatments, readouts, stems)

    def plan_treatments(
        self,
        prompts: Sequence[Prompt],
        treatments: Sequence[Sequence[Sequence[Treatment]]],
        readouts: Sequence[Sequence[int]] | None = None,
        stems: Sequence[int] | None = None,
    ) -> Plan:
        """Plan treatments, indexed by configuration, prompt and token."""
        by_prompt = list(zip(*treatments, strict=True))
        return make_plan(
            self.wiring.slots,
            list(map(self.pair.encoded, prompts)),
            by_prompt,
            readouts,
            [equal_slots(self.pair, name) for name in self.pair.donors],
            stems,
        )

    def run(self, plan: Plan) -> Iterator[Answers]:
        """Answer a plan chunk by chunk; only one chunk's logits are in memory.

        Where the device runs out of memory, this and all later plans are answered in forwards of
        half as many token rows, with a warning.

        Raises:
            InputError: The memory is too small for one configuration of a prompt.
        """
        given: list[tuple[torch.Tensor, torch.Tensor]] = []
        while True:
            try:
                for chunk in self._unanswered(plan, given):
                    given.append((chunk.prompt, chunk.configuration))
                    yield chunk
                return
            except RuntimeError as error:
                self._shrink(plan, error)

    def _unanswered(
        self, plan: Plan, given: Iterable[tuple[torch.Tensor, torch.Tensor]]
    ) -> Iterator[Answers]:
        """Answer what of a plan is not answered yet.

        Args:
            plan: The plan.
            given: Prompt and configuration of each answer so far.
        """
        before: set[tuple[int, int]] = set()
        for prompts, configurations in given:
            before.update(zip(prompts.tolist(), configurations.tolist(), strict=True))
        left = []
        for number, request in enumerate(plan.requests):
            if any((number, each) not in before for each in range(request.configurations)):
                left.append(number)
        rest = replace(plan, requests=tuple(plan.requests[number] for number in left))
        for chunk in EXECUTORS[self.executor](self.wiring, rest, self.budget):
            # Inference mode is left before the yield, so that it does not leak into the caller.
            with torch.inference_mode():
                answers = chunk.answers()
                if before:
                    answers = answers.within(torch.tensor(left), before)
            yield answers

    def _shrink(self, plan: Plan, error: RuntimeError) -> None:
        """Halve the token rows of a forward after one of a plan found too little memory.

        A prompt that is larger than the budget is a forward by itself, whatever that is: so rows are
        halved until some forward is smaller.
        """
        sizes = self.sizes(plan)
        tokens, smaller = min(self.budget.tokens, max(sizes)), self.budget
        while tokens > 1 and self.sizes(plan, smaller) == sizes:
            tokens //= 2
            smaller = replace(self.budget, tokens=tokens)
        less_at_once(self.pair, self.sizes(plan, smaller) != sizes, error)
        self.budget = smaller

    def sizes(self, plan: Plan, budget: Budget | None = None) -> list[int]:
        """Token rows of each chunk that `run` would answer; nothing is computed.

        Args:
            plan: The plan.
            budget: Limits of one forward. Default: the engine's.
        """
        chunks = EXECUTORS[self.executor](self.wiring, plan, budget or self.budget)
        return [chunk.token_rows for chunk in chunks]

    @torch.inference_mode()
    def activations(
        self,
        prompts: Sequence[Prompt],
        treatments: Sequence[Sequence[Treatment]],
        hooks: Sequence[Hook],
    ) -> list[Float[torch.Tensor, "hook token width"]]:
        """Activations at some hooks under one configuration.

        Args:
            prompts: Prompts of any lengths.
            treatments: Treatment of each token of each prompt.
            hooks: Hook points; activations are taken after edits at the hook.

        Returns:
            For each prompt, the activations of its tokens.
        """
        plan = self.plan_treatments(prompts, [treatments])
        while True:
            try:
                return read_activations(self.wiring, plan, self.budget, hooks)
            except RuntimeError as error:
                self._shrink(plan, error)

    def logits(self, plan: Plan) -> Float[torch.Tensor, "prompt configuration readout vocabulary"]:
        """All answers of a plan; prompts must have equal numbers of configurations and readouts."""
        first = plan.requests[0]
        shape = (
            len(plan.requests),
            first.configurations,
            len(first.readouts),
            self.pair.recipient.config.vocab_size,
        )
        out = torch.empty(shape, dtype=self.pair.dtype, device=self.pair.device)
        for chunk in self.run(plan):
            out[chunk.prompt, chunk.configuration, chunk.readout] = chunk.logits
        return out


def grafted_logits(
    pair: ModelPair,
    prompts: Prompt | Sequence[Prompt],
    grafts: str | Sequence[Configuration | str],
    executor: str = "packed",
    readouts: Sequence[Sequence[int]] | None = None,
) -> Float[torch.Tensor, "prompt graft *readout vocabulary"]:
    """Next-token logits of every prompt under every graft.

    Args:
        pair: The models.
        prompts: Prompts of any lengths, as `load_prompts` gives them.
        grafts: Configurations: graft expressions, `PRE` or `SFT`; or a text of several with commas.
        executor: `packed`, `rows`, `sequential` or `auto`; equal results.
        readouts: Tokens to read out, per prompt, equally many for all; by default the last token.

    Returns:
        Logits [prompt, graft, vocabulary], or [prompt, graft, readout, vocabulary] with `readouts`.

    Raises:
        GraftSyntaxError: A graft does not parse.
        InputError: What is given is no prompt.
        RegionError: A prompt lacks a region of a graft.
        UnknownNameError: A donor, component or executor does not exist.
        InputError: Hooks at all modules, or torch's autocast, would change what models compute.
    """
    check_pair(pair)
    refuse_hooks()
    if isinstance(grafts, str):
        grafts = split_grafts(grafts)
    prompts = [prompts] if isinstance(prompts, Prompt) else prompts
    with pair.lock:
        engine = Engine(pair, executor)
        logits = engine.logits(engine.plan(prompts, grafts, readouts))
    return logits if readouts is not None else logits[:, :, 0]
