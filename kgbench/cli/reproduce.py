"""`kgbench reproduce`: a figure of the paper, made again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from kgbench.cli.again import again_options
from kgbench.cli.eval import RESULTS
from kgbench.cli.figures import is_figure, reproduce_figures
from kgbench.cli.rerun import rerun
from kgbench.cli.study import STUDY, reproduce_study
from kgbench.errors import InputError

OF_FIGURES = ("report", "supplement", "seeds", "rows", "dry_run")
OF_RUNS = (
    *(
        "localizer",
        "recipient",
        "donor",
        "revision",
        "chat_template",
        "dataset",
        "subject",
        "object",
        "column",
        "template",
    ),
    *("batch_size", "tolerance"),
)
"""Options that only one of the two kinds takes; --executor and --device have defaults."""
OF_STUDY = ("only", "runs")
"""Options of the study alone; of the others it takes --report, --seeds and --dry-run."""


@click.command(
    epilog="Exit status: 0 done, also where a claim fails; 2 wrong input; 130 interrupted."
)
@click.argument("what", metavar="FIGURE|acceptance|all|study")
@again_options
@click.option(
    "--output-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=RESULTS,
    show_default=True,
    help="Where records go.",
)
@click.option(
    "--report",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Where the report goes.  [default: ./kgbench-reproduction/MODEL]",
)
@click.option(
    "--supplement",
    metavar="FILE|ID",
    help="Other text for the gentle recipe; a tiny pair has its own.",
)
@click.option(
    "--seeds",
    metavar="N,N,…",
    callback=lambda _, __, text: _seeds(text),
    help="Training seeds; a tiny pair of another than 0 is pretrained anew. Intervals of several are over facts and seeds.  [default: 0]",
)
@click.option(
    "--rows",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="Figures from the rows.parquet of a report, without a model.",
)
@click.option(
    "--only",
    multiple=True,
    metavar="RUN|CELL",
    help="Of the study: this run, or the runs of this cell; may be repeated.  [default: all]",
)
@click.option(
    "--runs",
    type=click.IntRange(min=0),
    metavar="N",
    help="Of the study: make at most N of the runs that are missing; 0 only writes the page from those that are in.",
)
@click.option("--dry-run", is_flag=True, help="Only say what it would take: time, memory, disk.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def command(what: str, output_dir: Path, as_json: bool, quiet: bool, **options: Any) -> int:
    """Make a figure of the paper again, and print it beside the paper's.

    A figure (figure-2 to figure-15 or their numbers, title_in_prompt,
    title_in_prompt_names, movie_title, relation, head, layers, articles,
    articles_top50, forgetting; `all` for all, `acceptance` for those of the
    positive control) is made on --model, by default tiny-gemma: donors that
    are missing are trained, evaluations run, and ours printed beside the
    paper's figures, with its claims checked one by one. On a tiny pair smaller
    data stands for the paper's. Whatever is interrupted goes on where it was, and
    what the report's rows.parquet holds is not made again.

    The study asks which features of an architecture make it recall at the last
    token or enrich at the first entity: small models of one code base,
    pretrained and finetuned in eight cells under three seeds, some minutes a
    run. Runs that are in the report's folder are not made again, and several
    processes may work on one study.

    \b
    kgbench reproduce figure-2 --model tiny-gemma
    kgbench reproduce all --seeds 0,1,2,3,4            # over training seeds
    kgbench reproduce acceptance --seeds 1             # a share of one more seed
    kgbench reproduce all --rows kgbench-reproduction/tiny-gemma/rows.parquet
    kgbench reproduce all --model gemma-2b --supplement Skylion007/openwebtext --dry-run
    kgbench reproduce study --report study --runs 4    # the next four runs and the page
    kgbench rerun RUN                                  # a recorded run again
    """  # noqa: D301 (click reads the character, not its escape)
    said = {**options, "output_dir": output_dir, "as_json": as_json, "quiet": quiet}
    if what == STUDY:
        others = (
            *OF_RUNS,
            *(name for name in OF_FIGURES if name not in ("report", "seeds", "dry_run")),
            "model",
        )
        _refuse(what, "a figure or a run", [name for name in others if options[name]])
        return reproduce_study(said)
    _refuse(what, "the study", [name for name in OF_STUDY if options[name] not in (None, ())])
    if is_figure(what):
        _refuse(what, "a run", [name for name in OF_RUNS if options[name]])
        return reproduce_figures(what, said)
    _refuse(what, "a figure", [name for name in OF_FIGURES if options[name]])
    click.echo(f"kgbench: note: to run a recorded run again, write kgbench rerun {what}", err=True)
    return rerun(what, said)


for option in command.params:
    # They go with `kgbench reproduce RUN`, the older name of `kgbench rerun RUN`.
    if option.name == "model":
        option.help = "The pair.  [default: tiny-gemma]"
    option.hidden = option.name in OF_RUNS  # type: ignore[attr-defined]  # arguments of this command are none of them


def _seeds(text: str | None) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")] if text else []
    if not all(part.isdecimal() for part in parts) or len(set(map(int, parts))) < len(parts):
        raise InputError(f"--seeds {text}: expected different whole numbers, such as 0,1,2,3,4")
    return tuple(map(int, parts))


def _refuse(what: str, kind: str, given: list[str]) -> None:
    if given:
        option = f"--{given[0].replace('_', '-')}"
        raise InputError(
            f"{option} says how {kind} is reproduced, and {what!r} is none: leave it out"
        )
