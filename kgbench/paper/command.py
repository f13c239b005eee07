"""`kgbench reproduce`: the paper's figures, the study of architectures, the board's entries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from kgbench.cli.options import ExistingFile, Folder, cli_command
from kgbench.cli.output import Output, table_text
from kgbench.errors import InputError
from kgbench.progress import Progress
from kgbench.runner.spec import RESULTS

STUDY, BOARD, FIGURES = "study", "board", "figures"
Seeds = tuple[int, ...]

_RUNS = ("model", "device", "output_dir", "dry_run")
OPTIONS: Mapping[str, Sequence[str]] = {
    FIGURES: (*_RUNS, "report", "supplement", "seeds", "rows"),
    STUDY: ("report", "seeds", "only", "runs", "dry_run"),
    BOARD: (*_RUNS, "board", "method", "limit", "root"),
}
"""Options of each kind of thing that is computed; all take --json and --quiet."""


def _read_seeds(ctx: click.Context, parameter: click.Parameter, text: str | None) -> Seeds:
    parts = [part.strip() for part in text.split(",")] if text else []
    if not all(part.isdecimal() for part in parts) or len(set(map(int, parts))) < len(parts):
        raise InputError(f"--seeds {text}: expected different whole numbers, such as 0,1,2,3,4")
    return tuple(map(int, parts))


@cli_command(
    *("model", "device", "output_dir", "report", "supplement", "seeds", "rows", "only", "runs"),
    *("board", "method", "limit", "root", "dry_run", "as_json", "quiet"),
    epilog="Exit status: 0 done, also where a claim fails; 1 some runs of the board failed; 2 "
    "wrong input; 130 interrupted.",
    short_help="Make the paper's figures again and compare them.",
    output_dir={"also": "--results"},
    seeds={"callback": _read_seeds},
    runs={"type": click.IntRange(min=0)},
)
def reproduce_command(
    what: str,
    *,
    model: str | None,
    device: str = "auto",
    output_dir: Folder = RESULTS,
    report: Folder | None,
    supplement: str | None,
    seeds: Seeds | None,
    rows: tuple[ExistingFile, ...],
    only: tuple[str, ...],
    runs: int | None,
    board: tuple[str, ...],
    method: tuple[str, ...],
    limit: int | None,
    dry_run: bool,
    progress: Progress | None,
    **options: Path,
) -> Output:
    """Compute a figure of the paper again, and compare it with the paper's.

    A figure (figure-2 to figure-15 or their numbers, title_in_prompt,
    title_in_prompt_names, movie_title, relation, head, layers, articles,
    articles_top50, forgetting; `all` for all, `acceptance` for those of the
    positive control) is computed on --model, by default tiny-gemma: missing
    donors are trained, evaluations run, and our estimates printed next to the
    paper's, with its claims checked one by one. A tiny pair has smaller data in
    place of the paper's. Real language models of some hundred million weights
    (smollm2-135m, gemma-3-270m) have further figures: all_weights,
    layer_weights, both_directions, and which tokens have to be grafted
    (relay_qa and others; a wrong name lists all). An interrupted command goes on
    where it was, and evaluations in the report's rows.parquet are not run again.

    The study asks which features of an architecture make it recall at the last
    token or enrich at the first entity: small models of one code base,
    pretrained and finetuned in sixteen cells under three seeds, some minutes a
    run. Runs in the report's folder are not made again, and several processes
    may work on one study.

    The board is the project's own entries: every built-in method on every
    board. A run of which there is an entry or a record is not computed again;
    entries of other weights, facts or versions of a method are replaced.

    \b
    kgbench reproduce figure-2 --model tiny-gemma
    kgbench reproduce all --seeds 0,1,2,3,4            # over training seeds
    kgbench reproduce acceptance --seeds 1             # a share of one more seed
    kgbench reproduce all --rows kgbench-reproduction/tiny-gemma/rows.parquet
    kgbench reproduce all --model gemma-2b --supplement Skylion007/openwebtext --dry-run
    kgbench reproduce study --report study --runs 4    # the next four runs and the page
    kgbench reproduce board --board planted --method snip,random --model tiny-gemma

    Args:
        what (FIGURE|acceptance|all|study|board): What is computed.
        model (PAIR): The pair; of the board only this pair and the plants in it, or this plant,
            several with commas.  [default: tiny-gemma; of the board all]
        device (DEVICE): cpu, cuda, cuda:1, mps.
        output_dir: Where records go.
        report (DIR): Where the report goes.  [default: ./kgbench-reproduction/MODEL]
        supplement (FILE|ID): Other text for the gentle recipe; a tiny pair has its own.
        seeds (N,N,…): Training seeds; a tiny pair of another than 0 is pretrained again. Intervals
            of several are over facts and seeds.  [default: 0]
        rows (FILE): Figures from the rows.parquet of a report, without a model; several, such as of
            further seeds, are joined in the report's folder.
        only (RUN|CELL): Of the study: this run, or the runs of this cell; may be repeated.
            [default: all]
        runs (N): Of the study: make at most N of the runs that are missing; 0 only writes the page
            from those that are in.
        board (NAME): Of the board: only this one; several with commas.
        method (NAME): Of the board: only this method; several with commas.
        limit (N): Of the board: only the first N facts, to try it out.
        dry_run: Only forecast time, memory and disk.
        progress: Progress callback.
        **options: The leaderboard's folder.
    """  # noqa: D301 (click reads the character, not its escape)
    context = click.get_current_context()
    kind = _kind(what, context)
    given: dict[str, Any] = {name: context.params[name] for name in OPTIONS[kind]}
    if kind == BOARD:
        from kgbench.paper.board_runs import make_board

        return make_board({**given, "quiet": context.params["quiet"]}, progress)
    del given["dry_run"]
    given["seeds"] = seeds or ()
    if kind == STUDY:
        if dry_run:
            return _study_states(only, given["seeds"], report)
        from kgbench.paper.reproduction import study as make_study

        studied = make_study(
            **given, on_run=lambda path: click.echo(f"run      {path}"), progress=progress or False
        )
        return Output([str(studied)], studied.to_json())
    if rows and dry_run:
        raise InputError("--rows computes figures from files alone: leave out --dry-run")
    if dry_run:
        return _costs(what, given, progress)
    from kgbench.paper.reproduction import reproduce

    made = reproduce(what, **given, progress=progress or False)
    return Output([str(made)], made.to_json())


def _kind(what: str, context: click.Context) -> str:
    """The kind of what is computed, a key of `OPTIONS`; options of other kinds are refused.

    Raises:
        InputError: An option is given that does not go with it.
        UnknownNameError: There is no such figure.
    """
    from kgbench.paper.figure_specs import chosen

    if what not in (STUDY, BOARD):
        chosen(what)
    kind = what if what in OPTIONS else FIGURES
    for option in context.command.params:
        name = str(option.name)
        if context.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            continue
        owners = [owner for owner, names in OPTIONS.items() if name in names]
        if owners and kind not in owners:
            raise InputError(
                f"{option.opts[0]} is an option of the {' and the '.join(owners)}, not of "
                f"{what!r}: leave it out"
            )
    return kind


def _study_states(only: Sequence[str], seeds: Seeds, report: Path | None) -> Output:
    """Which runs are in."""
    from kgbench.paper.architectures.design import study_design
    from kgbench.paper.architectures.run_rows import rows_path
    from kgbench.paper.reproduction import report_folder

    design, folder = study_design(), report_folder(STUDY, report)
    runs = [run.name for run in design.chosen(only, seeds)]
    missing = [name for name in runs if not rows_path(folder, name).is_file()]
    states = [[name, "missing" if name in missing else "in"] for name in runs]
    answer = {"missing": missing, "runs": len(design.runs)}
    return Output([table_text(["run", "state"], states)], answer)


def _costs(what: str, options: Mapping[str, Any], progress: Progress | None) -> Output:
    from kgbench.paper.figure_parts import costs
    from kgbench.paper.figure_specs import chosen
    from kgbench.paper.reproduction import ingredients_of, report_folder, rows_there
    from kgbench.runner import Settings
    from kgbench.runner.costs import cost_table

    pairs = ingredients_of(options["model"], options["supplement"], options["seeds"])
    names, model = chosen(what, pairs[0].scale), pairs[0].model
    settings = Settings(device=options["device"], output_dir=options["output_dir"])
    known = rows_there(report_folder(model, options["report"]))
    parts = costs(names, pairs, settings, progress, known)
    answer = {"model": model, "figures": list(names), "parts": [part.to_json() for part in parts]}
    return Output([table_text(*cost_table(parts))], answer)
