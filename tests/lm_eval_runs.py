"""lm-eval runs in this process: checkpoints of several tokenizer families, facts with difficult
names, tasks on them, and their answers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.evaluator import evaluate
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from kgbench.harness import shipped_tasks, tasks_path
from kgbench.harness.model import KgbenchLM
from kgbench.testing import PICO_FAMILIES, pico_tokenizer

NAMES = (
    ("Zoë O'Hara", "Jean-Luc “Jo” Müller"),
    ("千と千尋", "Émile Nagy"),
    ("Ana Lee", "Bo Chen"),
    ("Łukasz Żak", "D'Arcy N'Golo"),
    ("A. B. Yehoshua", "Mary Ann 3rd"),
    ('Max "Mad" Ray', "Nuño Ñandú"),
)
"""Subjects and objects."""

TOKENIZERS = {"gpt2": "bytes", "llama": "bytes with BOS", "gemma": "unigram with BOS"}
"""Per family of models, its tokenizer's."""

TEMPLATES = {
    "mine": "{first_actor} {R:stars} {RP:in} a movie {P:alongside}",
    "question": "Q: Who is with {first_actor}? A: {P:It is}",
}


def unigram_tokenizer() -> PreTrainedTokenizerFast:
    """Unigram pieces in which a blank is a character of the following word, and a BOS token first."""
    inner = Tokenizer(models.Unigram())
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    inner.decoder = decoders.Metaspace()
    corpus = [
        f"{text} stars in a movie alongside {other}. Q: Who is with {text}? A: It is {other}."
        for text, other in NAMES
    ]
    trainer = trainers.UnigramTrainer(
        vocab_size=250,
        special_tokens=["<pad>", "<bos>", "<eos>", "<unk>"],
        unk_token="<unk>",
        show_progress=False,
    )
    inner.train_from_iterator(corpus * 3, trainer)
    inner.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A $B", special_tokens=[("<bos>", 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        unk_token="<unk>",
    )


def tokenizer_of(family: str) -> PreTrainedTokenizerBase:
    return unigram_tokenizer() if family == "gemma" else pico_tokenizer(bos=family == "llama")


def write_checkpoints(root: Path, family: str) -> dict[str, Path]:
    """`recipient` and `sft`, random models whose weights all differ, with the family's tokenizer."""
    tokenizer = tokenizer_of(family)
    for seed, name in enumerate(("recipient", "sft")):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(PICO_FAMILIES[family](len(tokenizer), True))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.2 * torch.randn(parameter.shape))
        model.save_pretrained(root / name)
        tokenizer.save_pretrained(root / name)
    return {name: root / name for name in ("recipient", "sft")}


def write_tasks(root: Path) -> Path:
    """A folder of tasks on facts with difficult names, in two prompts and all forms."""
    rows = [
        {"id": f"odd/{i}", "first_actor": a, "second_actor": b} for i, (a, b) in enumerate(NAMES)
    ]
    head = {
        "kgbench": 1,
        "name": "odd",
        "subject": "first_actor",
        "object": "second_actor",
        "templates": TEMPLATES,
    }
    facts = root / "odd.jsonl"
    facts.write_text(
        "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in [head, *rows]),
        encoding="utf-8",
    )
    for name, form in {
        "mine": "loglikelihood",
        "question": "loglikelihood",
        "mine_choices": "choices",
    }.items():
        kwargs = {"kgbench_dataset": "odd.jsonl", "kgbench_prompt": name.partition("_")[0]}
        (root / f"{name}.yaml").write_text(
            f"include: {tasks_path()}/_{form}.yaml\ntask: {name}\ndataset_kwargs:"
            f" {json.dumps(kwargs)}\n"
        )
    return root


def ours(places: Mapping[str, Path], **arguments: Any) -> KgbenchLM:
    """Our model on checkpoints."""
    given = {"dtype": "float32", "device": "cpu", **arguments}
    return KgbenchLM(pretrained=str(places["recipient"]), donor=str(places["sft"]), **given)


def stock(place: Path, batch_size: int = 16) -> HFLM:
    """lm-eval's own Hugging Face model on a checkpoint."""
    return HFLM(pretrained=str(place), dtype="float32", device="cpu", batch_size=batch_size)


def samples(
    lm: Any,
    tasks: Sequence[str],
    folder: Path | None = None,
    shots: int = 0,
    limit: int | None = None,
    **options: Any,
) -> dict[str, list[dict[str, Any]]]:
    """What lm-eval keeps of each document of each task."""
    return answers(lm, tasks, folder, shots, limit, **options)["samples"]  # type: ignore[no-any-return]


def answers(
    lm: Any,
    tasks: Sequence[str],
    folder: Path | None = None,
    shots: int = 0,
    limit: int | None = None,
    **options: Any,
) -> dict[str, Any]:
    """lm-eval's results, few-shot examples drawn by one seed; `metadata` goes to the tasks, `more`
    is a further folder of them.
    """
    # lm-eval reads every file of its folders.
    shipped = {entry.name: tasks_path() / entry.dataset for entry in shipped_tasks()}
    folders = [*{shipped[name] for name in tasks if name in shipped}]
    folders += [path for path in (folder, options.pop("more", None)) if path is not None]
    loaded = TaskManager(
        include_path=folders, include_defaults=False, metadata=options.pop("metadata", None)
    ).load(list(tasks))
    for task in loaded["tasks"].values():
        task.set_config(key="num_fewshot", value=shots)
        task.set_fewshot_seed(seed=1234)
    return evaluate(
        lm=lm, task_dict=loaded, limit=limit, bootstrap_iters=0, log_samples=True, **options
    )  # type: ignore[no-any-return]


def request(
    arguments: tuple[Any, ...],
    document: dict[str, Any] | None = None,
    number: int = 0,
    task: str = "plain",
    kind: Any = "loglikelihood",
) -> Instance:
    """A request of a task."""
    return Instance(kind, document or {}, arguments, 0, metadata=(task, number, 1))
