"""Breaks the engine on purpose, one mutant at a time; every mutant must turn at least one law red.

A mutant is a few text patches to a temporary copy of the package. Run `make mutants`, or `python
tests/mutants.py NAME ...` for some.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

TESTS = Path(__file__).resolve().parent
PACKAGE = TESTS.parent / "kgbench"
AT_ONCE = 2


@dataclass(frozen=True)
class Patch:
    """One place of one file."""

    file: str
    old: str
    """Stands in the file exactly once."""
    new: str


@dataclass(frozen=True)
class Mutant:
    """A way to be wrong."""

    name: str
    patches: tuple[Patch, ...]
    only: str = ""
    """Which laws to run, as pytest's -k; all by default."""
    test: str = "test_laws.py"


def mutant(
    name: str, *patches: tuple[str, str, str], only: str = "", test: str = "test_laws.py"
) -> Mutant:
    return Mutant(name, tuple(Patch(*p) for p in patches), only, test)


families = partial(mutant, test="test_all_families.py")
_ORACLE = "every_component or paper_s_algorithm"
_FUSED_K, _FUSED_V = (
    '"{}": {{"module": "attn.c_attn", "part": {}, "of": 3}}'.format(*of)
    for of in (("k", 1), ("v", 2))
)
_COLUMNS = "return torch.arange(width).reshape(blocks, -1)[:, first:last].reshape(-1)"
_RESTORE = "        yield\n    finally:\n        for module, original in before.items():"

MUTANTS = (
    mutant(
        "k and v swapped in a fused map",
        ("models/families/gpt2.json", _FUSED_K, _FUSED_K.replace("1", "2")),
        ("models/families/gpt2.json", _FUSED_V, _FUSED_V.replace("2", "1")),
        only=_ORACLE,
    ),
    mutant(
        "k and v swapped in a plain map",
        ("models/families/llama.json", '"k": "self_attn.k_proj"', '"k": "self_attn.v_proj"'),
        ("models/families/llama.json", '"v": "self_attn.v_proj"', '"v": "self_attn.k_proj"'),
        only=_ORACLE,
    ),
    mutant(
        "a fused slice shifted by one head",
        (
            "models/family_map.py",
            _COLUMNS,
            f"{_COLUMNS}.add(config.hidden_size // config.num_attention_heads) % width",
        ),
        only=_ORACLE,
    ),
    mutant(
        "slices interleaved by head taken for thirds",
        (
            "models/family_map.py",
            "blocks = 1 if self.per is None else _number(config, self.per)",
            "blocks = 1",
        ),
        only=_ORACLE,
    ),
    mutant(
        "BOS left out of complements",
        (
            "sites/graft.py",
            "return everything - inside if",
            'return everything - inside - set(regions.get("BOS", ())) if',
        ),
        only="paper_s_algorithm and llama",
    ),
    mutant(
        "default components hold the donor's head",
        (
            "sites/vocabulary.py",
            '"all": (*OUTSIDE[:2], *PER_LAYER)',
            '"all": (*OUTSIDE, *PER_LAYER)',
        ),
        only=_ORACLE,
    ),
    mutant(
        "default components lack learned positions",
        ("sites/vocabulary.py", '"all": (*OUTSIDE[:2], *PER_LAYER)', '"all": ("emb", *PER_LAYER)'),
    ),
    mutant(
        "a range of layers ends one early",
        ("sites/graft.py", "int(last or first) + 1)", "int(last or first) + (not last))"),
        only=_ORACLE,
    ),
    mutant(
        "fractions of layers rounded up",
        ("sites/graft.py", "range(int(ends[0] * n)", "range(-int(-ends[0] * n // 1)"),
        only=_ORACLE,
    ),
    mutant(
        "weights taken one layer off",
        ("models/family_map.py", 'f"{self.layers}.{layer}.', 'f"{self.layers}.{(layer + 1) % 3}.'),
        only=_ORACLE,
    ),
    mutant(
        "ancestor mask shifted by one",
        ("engine/tree.py", "accumulate(firsts[:0:-1])", "accumulate(firsts[:0:-1] + 1)"),
    ),
    mutant(
        "branches share nodes of other branches",
        (
            "engine/tree.py",
            "np.concatenate([[0], shared])",
            "np.concatenate([[0], shared + 1])",
        ),
        only=_ORACLE,
    ),
    mutant(
        "position ids shifted by one",
        ("engine/packed.py", "= tree.depths, tree.ends", "= tree.depths + 1, tree.ends"),
    ),
    mutant(
        "position ids by row instead of depth",
        (
            "engine/packed.py",
            "indices.add(ids), indices.add(depths)",
            "indices.add(ids), indices.add(np.tile(np.arange(width), (len(chunk), 1)))",
        ),
    ),
    mutant(
        "readout one token early, packed",
        ("engine/packed.py", "t.leaves.reshape(-1) for", "t.leaves.reshape(-1) - 1 for"),
    ),
    mutant(
        "readout in the padding, rows",
        ("engine/batch_rows.py", "[row * width + readout for", "[row * width + width - 1 for"),
    ),
    mutant(
        "padding seen by the tokens",
        (
            "engine/attention_masks.py",
            "(queries >= tokens) & (queries < self.ends.on(device)[:, None])",
            "queries < self.ends.on(device)[:, None]",
        ),
    ),
    mutant(
        "prompts given the tree of another layout",
        ("engine/packed.py", "(layout, number), angles", "(0, number), angles"),
    ),
    mutant(
        "prompts of one text read each other's tokens",
        ("engine/siblings.py", "_base + request.ids", "_base + self.requests[0].ids[0]"),
        test="test_siblings.py",
    ),
    mutant(
        "shorter prompts of one text do not end the nodes of longer ones",
        ("engine/tree.py", "np.where(apart, ", "np.where(new, "),
        test="test_tree.py",
    ),
    mutant(
        "answers of a chunk in another order",
        (
            "engine/packed.py",
            "key=lambda g: (g.angles, g.nodes)",
            "key=lambda g: (g.angles, -g.kin.first)",
        ),
        ("engine/packed.py", "np.concatenate(labels, ", "np.concatenate(labels[::-1], "),
    ),
    mutant(
        "angles of the longest prompt of a batch",
        ("engine/rotary.py", "return tuple(clamped)", "return ()"),
        test="test_rotary.py",
    ),
    mutant(
        "angles of the tokens so far",
        ("engine/forward.py", "{} if length is None else wiring.rotary.at(length)", "{}"),
        test="test_rotary.py",
    ),
    mutant(
        "earlier terms win",
        ("engine/treatment.py", "for term in sets.terms:", "for term in reversed(sets.terms):"),
        only="later",
    ),
    mutant(
        "`recipient` does not put back",
        (
            "engine/treatment.py",
            "        terms.append(_Sets(",
            "        if term.donor != RECIPIENT:\n            terms.append(_Sets(",
        ),
        only="later",
    ),
    mutant(
        "a second donor taken for the first",
        (
            "engine/treatment.py",
            "return (RECIPIENT, *pair.donors).index(named_donor(name, pair.donors))",
            "return min((RECIPIENT, *pair.donors).index(named_donor(name, pair.donors)), 1)",
        ),
    ),
    mutant(
        "the donor's head used though not named",
        (
            "engine/forward.py",
            "sets = weights.table[:, socket.slots]",
            (
                "sets = weights.table[:, socket.slots]\n"
                "        sets = weights.table[:, :1] if socket.is_head else sets"
            ),
        ),
        only=_ORACLE,
    ),
    mutant(
        "the recipient's head used though the donor's is named",
        ("engine/plan.py", "        if not read:\n", "        if True:\n"),
    ),
    mutant(
        "the last MLP left out at rows that a copy reads",
        (
            "engine/forward.py",
            "[*activity.sources.get(out, ()), *activity.sources.get(after, ())]",
            "[*activity.sources.get(out, ())]",
        ),
        only="all_copied",
        test="test_edits.py",
    ),
    mutant(
        "the bias of o counted as its heads'",
        ("engine/gated.py", "theirs = donor(part) - donor(nothing)", "theirs = donor(part)"),
        only="grafts or by_heads",
        test="test_gradients.py",
    ),
    mutant(
        "MLPs left out at rows that a part is copied to",
        ("engine/schedule.py", "(kind is Copy and basis is None)", "kind is Copy"),
        test="test_edits.py",
    ),
    mutant(
        "MLPs left out at rows that something is added to",
        ("engine/schedule.py", "if kind is Write or", "if kind is not Copy or"),
        test="test_edits.py",
    ),
    mutant(
        "final norm and head divided as all tokens are",
        (
            "engine/forward.py",
            "bytes([len(socket.slots), socket.is_head])",
            "bytes([len(socket.slots)])",
        ),
    ),
    mutant(
        "the recipient's rows of a fused projection forgotten",
        (
            "engine/forward.py",
            "for s in present if s != most)",
            "for s in present if s not in (0, most))",
        ),
    ),
    mutant(
        "the fewer rows of a plain module forgotten",
        (
            "engine/forward.py",
            "return Split(most, parts)",
            "return Split(most, ())",
        ),
    ),
    mutant(
        "the rows of a plain module in another order",
        (
            "engine/forward.py",
            "np.argsort(np.concatenate(list(rows.values())))",
            "np.arange(len(sets))",
        ),
    ),
    mutant(
        "slices of the sequential executor left out",
        (
            "engine/sequential.py",
            "Weights(self.plan.table, ",
            "Weights(self.plan.table[:, :1].repeat(len(self.wiring.slots), axis=1), ",
        ),
        only=_ORACLE,
    ),
    # Where rows by layer are wrong, the engine does without them, so the self-test must be red.
    mutant(
        "the last MLP treated as at other rows",
        (
            "engine/forward.py",
            "tokens_of[number][mlp_rows[layer]]",
            "tokens_of[number][: len(mlp_rows[layer])]",
        ),
        only="true_maps",
        test="test_selftest.py",
    ),
    mutant(
        "treatments taken for one a layer too long",
        ("engine/packed.py", "if site[0] == layer)", "if site[0] == max(layer - 1, 0))"),
        only="true_maps",
        test="test_selftest.py",
    ),
    mutant(
        "a stage that goes on from the wrong rows",
        ("engine/packed.py", "before[row].at[trunk.nodes]", "trunk.nodes % len(before[row].tree)"),
        only="true_maps",
        test="test_selftest.py",
    ),
    mutant(
        "rotary embeddings of other rows than the stage's",
        (
            "engine/forward.py",
            "_gathered(value, rows) if by_token",
            "value[:, : rows.on(value.device).shape[1]] if by_token",
        ),
        only="true_maps",
        test="test_selftest.py",
    ),
    mutant(
        "edits of a layer forgotten where its rows are divided",
        ("engine/packed.py", "edit.hook.layer <= layer", "edit.hook.layer < layer"),
        test="test_edits.py",
    ),
    mutant(
        "copies within a stage from the rows of the batch",
        ("engine/schedule.py", "nodes[step.sources] if", "np.array(step.sources) if"),
        test="test_edits.py",
    ),
    mutant(
        "the bias of `o` counted once a head",
        (
            "engine/forward.py",
            "forwards[weight_set](part.flatten(1)) - forwards[weight_set](zeros)",
            "forwards[weight_set](part.flatten(1))",
        ),
        only="every_head",
    ),
    mutant(
        "heads of keys counted like those of queries",
        ("engine/treatment.py", "int(grouped or config.num", "int(config.num"),
        only="every_head or not_there",
    ),
    mutant(
        "heads kept where a later term names their component",
        ("engine/treatment.py", "in [key for key in heads[token] if", "in [key for key in () if"),
        only="every_head",
    ),
    mutant(
        "weights with an equal first row taken for equal",
        ("engine/weights.py", "if not equal(part.of(ours), part.of(theirs)):", "if False:"),
        only="one_weight",
    ),
    mutant(
        "norms of another epsilon taken for equal",
        (
            "engine/weights.py",
            "if _plain_attributes(first) != _plain_attributes(other):",
            "if False:",
        ),
        only="one_weight",
    ),
    mutant(
        "a forward left on its module",
        ("engine/forward.py", 'module.__dict__.pop("forward", None)', "pass"),
        test="test_restoration.py",
    ),
    mutant(
        "a module's own forward not put back",
        ("engine/forward.py", "module.__dict__.update(original)", "pass"),
        test="test_restoration.py",
    ),
    mutant(
        "nothing restored after an exception",
        (
            "engine/forward.py",
            _RESTORE,
            _RESTORE.replace("finally:", "except BaseException:\n        raise\n    else:"),
        ),
        test="test_restoration.py",
    ),
    mutant(
        "a weight overwritten and not restored",
        (
            "engine/forward.py",
            "        yield\n    finally:",
            "        sockets[-1].modules[0].weight.data.mul_(1.001)\n        yield\n    finally:",
        ),
        test="test_restoration.py",
    ),
    mutant(
        "trees larger than their limit",
        (
            "engine/tree.py",
            "if group and (len(group) == most or",
            "if group and (len(group) == most and",
        ),
        test="test_tree.py",
    ),
    mutant(
        "a tie counts for the target",
        (
            "metrics.py",
            "torch.logical_not(logits < target).sum(dim=-1)",
            "1 + (logits > target).sum(dim=-1)",
        ),
        test="test_metrics.py",
    ),
    mutant(
        "the target is its own rival",
        ("metrics.py", "exact.scatter(1, index, -torch.inf).amax", "exact.amax"),
        test="test_metrics.py",
    ),
    mutant(
        "copies from the token before",
        (
            "engine/schedule.py",
            "int(self.nodes[self.runs[edit.source], token])",
            "int(self.nodes[self.runs[edit.source], max(token - 1, 0)])",
        ),
        test="test_edits.py",
    ),
    mutant(
        "a copy does not wait for its source",
        (
            "engine/schedule.py",
            "return max(before, self._final(self.runs[edit.source], token, edit.hook)) + 1",
            "return before + 1",
        ),
        test="test_edits.py",
    ),
    mutant(
        "edits at one hook in any order",
        ("engine/schedule.py", "item[0][1])", "-item[0][1])"),
        test="test_edits.py",
    ),
    mutant(
        "whole activations copied whatever the basis",
        ("engine/schedule.py", "    if basis is not None:", "    if False:"),
        test="test_edits.py",
    ),
    mutant(
        "activations read where MLPs were spared",
        ("engine/forward.py", "Wiring(self.pair, self.donors) if self.staged", "self if True"),
        test="test_edits.py",
    ),
    mutant(
        "variances of one group only",
        ("stats/contrast.py", "total += part", "total = part"),
        test="test_contrast.py",
    ),
    mutant(
        "constants added, not written",
        ("engine/schedule.py", "_added if kind is Add else _written", "_added"),
        test="test_edits.py",
    ),
    mutant(
        "cuts forgotten",
        ("engine/schedule.py", "            if pairs:", "            if False:"),
        test="test_edits.py",
    ),
    mutant(
        "cuts in the layer below",
        ("engine/schedule.py", "cuts[cut.layer] +=", "cuts[max(cut.layer - 1, 0)] +="),
        test="test_edits.py",
    ),
    mutant(
        "tokens cut off from themselves",
        ("engine/schedule.py", "(cut.keys) if key < token", "(cut.keys) if key <= token"),
        test="test_edits.py",
    ),
    mutant(
        "input and output of a layer exchanged",
        (
            "engine/forward.py",
            'edit(path, before=at["resid_pre"], after=at["resid_post"])',
            'edit(path, before=at["resid_post"], after=at["resid_pre"])',
        ),
        test="test_edits.py",
    ),
    mutant(
        "scales forgotten",
        ("engine/forward.py", "y + self.scale * difference", "y + difference"),
        test="test_edits.py",
    ),
    mutant(
        "constants told apart by nothing",
        (
            "engine/edits.py",
            "isinstance(other, Values) and self._key == other._key",
            "isinstance(other, Values)",
        ),
        ("engine/edits.py", "return hash(self._key)", "return 0"),
        test="test_edits.py",
    ),
    mutant(
        "runs left out of divided trees",
        ("engine/plan.py", "run for run in self.needs.get(configuration, ())", "run for run in ()"),
        test="test_edits.py",
    ),
    mutant(
        "spans taken where the query does not stand",
        ("harness/encoded_requests.py", "(span[0] + start, span[1] + start)", "(span[0], span[1])"),
        test="test_lm_eval_model.py",
        only="audited",
    ),
    mutant(
        "later tokens never counted to LT",
        (
            "harness/encoded_requests.py",
            "tuple(range(self.lead, len(self.encoded.ids)))",
            "(self.lead,)",
        ),
        test="test_lm_eval_model.py",
        only="audited",
    ),
    mutant(
        "the first of the later tokens treated as LT",
        (
            "harness/continuation_scores.py",
            "(*a[: p.lead + 1], *b[p.lead + 1 :])",
            "(*a[: p.lead + 2], *b[p.lead + 2 :])",
        ),
        test="test_lm_eval_model.py",
        only="audited",
    ),
    mutant(
        "scores of a passage begin with the first one's",
        ("harness/continuation_scores.py", "            first += len(passage.readouts)\n", ""),
        test="test_lm_eval_model.py",
        only="audited",
    ),
    mutant(
        "blanks of the context left out of the score",
        (
            "harness/encoded_requests.py",
            "range(self.lead - len(self.before), self.lead",
            "range(self.lead, self.lead",
        ),
        (
            "harness/continuation_scores.py",
            "(*passage.before, *passage.targets)",
            "passage.targets",
        ),
        ("harness/continuation_scores.py", "first + len(passage.before)]", "first]"),
        test="test_lm_eval_model.py",
        only="without_spans",
    ),
    mutant(
        "a method fitted on contexts and continuations",
        (
            "harness/encoded_requests.py",
            'prompt=replace(self.prompt, target="")',
            "prompt=self.prompt",
        ),
        test="test_lm_eval_methods.py",
    ),
    mutant(
        "methods that look for the last token asked once for all tokens",
        (
            "localizers/_base.py",
            "reads_any_token: ClassVar[bool] = False",
            "reads_any_token: ClassVar[bool] = True",
        ),
        test="test_lm_eval_methods.py",
    ),
    mutant(
        "methods fitted on all tasks together",
        ("harness/model.py", "setdefault(passage.source.task, [])", 'setdefault("", [])'),
        test="test_lm_eval_methods.py",
    ),
    mutant(
        "empty contexts learned from",
        ("harness/continuation_scores.py", "if prompt.text} or bare", "} or bare"),
        test="test_lm_eval_methods.py",
    ),
    mutant(
        "the first query of a context taken",
        ("harness/encoded_requests.py", "context.rfind(query)", "context.find(query)"),
        test="test_lm_eval_requests.py",
    ),
    mutant(
        "spans left out of what tells requests apart",
        (
            "harness/encoded_requests.py",
            "context, continuation, spans)",
            "context, continuation, {})",
        ),
        test="test_lm_eval_requests.py",
    ),
    mutant(
        "a written BOS taken for a word",
        ("harness/encoded_requests.py", "special[0] = True", "pass"),
        test="test_lm_eval_requests.py",
    ),
    mutant(
        "a share of an adapter is all of it",
        (
            "models/parts.py",
            "LowRank(module.base, a, part.share * b)",
            "LowRank(module.base, a, b)",
        ),
        test="test_parts.py",
    ),
    mutant(
        "the smallest singular directions are the first",
        (
            "models/lora.py",
            "slice(which.start, which.stop)",
            "slice(-which.stop, -which.start or None)",
        ),
        test="test_parts.py",
    ),
    families(
        "windows one token longer",
        ("engine/attention_masks.py", "- depths[:, None] < self", "- depths[:, None] <= self"),
        only="agree",
    ),
    families(
        "windows in all layers",
        ("engine/attention_masks.py", "size and kind == _WINDOWED", "size"),
        only="agree and qwen2",
    ),
    families(
        "windows by row, not by depth",
        ("engine/attention_masks.py", "near = depths[", "near = depths.sort().values["),
        only="agree and mistral",
    ),
    families(
        "windows forgotten where attention is cut",
        ("engine/schedule.py", "masks.of(layer).clone()", "masks.whole.clone()"),
        only="edits",
    ),
    families(
        "cuts counted from the prompt's first token",
        ("engine/sequential.py", "key - first for", "key for"),
        only="edits and mistral",
    ),
    families(
        "the widths of the first two slices exchanged",
        (
            "models/families/phi3.json",
            '"part": 0, "of": ["num_attention_heads", "num_key_value_heads"',
            '"part": 0, "of": ["num_key_value_heads", "num_attention_heads"',
        ),
        only="phi3",
    ),
    families(
        "gate and up exchanged",
        *(
            ("models/families/phi3.json", f'"part": {i}, "of": 2', f'"part": {1 - i}, "of":  2')
            for i in (0, 1)
        ),
        only="names_say and phi3",
    ),
    families(
        "edits put in the place of a module's weights",
        ("engine/forward.py", "edited(plans.get(module) or module", "edited(module"),
        only="edits",
    ),
    families(
        "tokens of normed heads counted in the first dimension",
        ("engine/forward.py", "x.movedim(self.place.tokens, 1)", "x"),
        only="agree",
    ),
    families(
        "gates of normed heads laid over heads",
        ("engine/gated.py", ".movedim(1, self.tokens)", ""),
        only="gates and gemma3",
    ),
    families(
        "projections behind embeddings left out",
        ("models/family_map.py", "for further in place.also)\n", "for further in ())\n"),
        only="opt",
    ),
    families(
        "all there is asked of every model",
        ("models/family_map.py", "if not place.optional or ", "if True or "),
        only="stablelm",
    ),
)


@dataclass(frozen=True)
class Outcome:
    """What the laws said about a mutant."""

    name: str
    caught_by: str | None
    seconds: float
    said: str
    """The end of what pytest printed."""


def broken(mutant: Mutant, folder: Path) -> None:
    """Write a copy of the package with the mutant's patches into a folder.

    Raises:
        ValueError: What a patch replaces is not in the file exactly once, so that the list of mutants is out of date.
    """
    copy = folder / "kgbench"
    shutil.copytree(PACKAGE, copy, ignore=_weights)
    shutil.copytree(PACKAGE.parent / "tasks", copy / "tasks")
    for patch in mutant.patches:
        path = copy / patch.file
        path.write_text(patched(path.read_text("utf-8"), patch), "utf-8")


def _weights(folder: str, names: Sequence[str]) -> set[str]:
    """What of a folder no law needs: the weights of the shipped models."""
    return {"__pycache__", *(names if Path(folder) == PACKAGE / "models" / "zoo" else ())}


def patched(text: str, patch: Patch) -> str:
    """A file's text with the patch.

    Raises:
        ValueError: What the patch replaces is not in the text exactly once.
    """
    if (count := text.count(patch.old)) != 1:
        raise ValueError(f"{patch.old!r} stands {count} times in kgbench/{patch.file}, not once")
    return text.replace(patch.old, patch.new)


def judged(mutant: Mutant) -> Outcome:
    """Run the laws on a mutant until the first turns red."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kgbench-mutant-") as name:
        broken(mutant, Path(name))
        line = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "--tb=line",
            "-p",
            "no:cacheprovider",
            "-m",
            "",  # nightly cases too
            "-c",
            str(TESTS.parent / "pyproject.toml"),
        ]
        line += [
            f"--rootdir={TESTS.parent}",
            str(TESTS / mutant.test),
            *(["-k", mutant.only] if mutant.only else []),
        ]
        # The copy is the working directory and first on the path, so that it is what the tests
        # import.
        environment = {
            **os.environ,
            "PYTHONPATH": name,
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
            "NO_COLOR": "1",
        }
        done = subprocess.run(line, cwd=name, env=environment, capture_output=True, text=True)
    red = re.search(r"^FAILED \S*?(test_\w+\.py::\S+)", done.stdout, re.MULTILINE)
    if (
        done.returncode == 2 and "kgbench.errors." in done.stdout
    ):  # the package refused a model that the laws are collected from
        red = re.search(r"^ERROR \S*?(test_\w+\.py)", done.stdout, re.MULTILINE)
    if done.returncode not in (0, 1, 2) or bool(done.returncode) != bool(red):
        raise RuntimeError(
            f"mutant {mutant.name!r}: the laws could not be"
            f" run\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        )
    return Outcome(
        mutant.name, red.group(1) if red else None, time.monotonic() - started, done.stdout[-2000:]
    )


def outcomes(mutants: Sequence[Mutant]) -> Iterator[Outcome]:
    """All mutants, some at a time."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield from pool.map(judged, mutants)


def main(names: Sequence[str]) -> int:
    """Judge the mutants whose names hold one of the texts; all of them without a text. Returns the
    exit status.
    """
    chosen = [m for m in MUTANTS if not names or any(n in m.name for n in names)]
    unbroken = [
        Mutant("(nothing broken)", (), test=test) for test in dict.fromkeys(m.test for m in chosen)
    ]
    wide = max(len(m.name) for m in (*chosen, *unbroken))
    wrong = 0
    for found in outcomes([*unbroken, *chosen]):
        is_wrong = (found.caught_by is None) == bool(found.name != unbroken[0].name)
        wrong += is_wrong
        told = found.caught_by or "no law"
        print(
            f"{found.name:<{wide}}  {found.seconds:5.0f} s "
            f" {told}{'   <-- WRONG' if is_wrong else ''}",
            flush=True,
        )
        if is_wrong:
            print(found.said, file=sys.stderr)
    print(f"{len(chosen)} mutants, {wrong} wrong")
    return bool(wrong)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
