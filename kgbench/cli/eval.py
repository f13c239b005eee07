"""`kgbench eval`: run localizers on a model pair."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from kgbench.cli.options import (
    VERDICT_ONLY,
    File,
    check_options,
    cli_command,
    settings_of,
    spec_of,
)
from kgbench.cli.output import Output, table_text, write_file
from kgbench.errors import InputError, ModelError, UnknownNameError
from kgbench.progress import progress
from kgbench.runner.spec import COMPUTING, FACTS, PAIR, listed

if TYPE_CHECKING:

    from kgbench.records import Record
    from kgbench.report import Report
    from kgbench.runner import Pairs, Run, Spec


def read_config(ctx: click.Context, parameter: click.Parameter, path: Path | None) -> Path | None:
    """Take the values of a file as the defaults of all other options.

    Raises:
        InputError: The file does not read, or a value has the wrong shape.
        UnknownNameError: A key is no option.
    """
    if path is None:
        return None
    from kgbench.runner.yaml_files import by_option, read_yaml

    content = read_yaml(path)
    if not isinstance(content, dict):
        raise InputError(
            f"{path}: expected names of options with their values, such as 'model: tiny-gemma'"
        )
    options = {}
    for option in ctx.command.params:
        if isinstance(option, click.Option) and option is not parameter:
            options[next(text for text in option.opts if text.startswith("--"))[2:]] = option
    defaults = {}
    for key, value in by_option(content).items():
        if key not in options:
            raise UnknownNameError(f"key in {path}", key, options)
        read = _value(path, key, value, options[key].multiple)
        try:
            options[key].type_cast_value(ctx, read)
        except click.BadParameter as error:
            raise InputError(f"{path}: {key}: {error.message}") from None
        defaults[str(options[key].name)] = read
    ctx.default_map = {**(ctx.default_map or {}), **defaults}
    return path


def _from_file(ctx: click.Context) -> Iterator[tuple[str, str]]:
    """Texts of the file that no option of the command line replaces, each with its key."""
    for name, value in (ctx.default_map or {}).items():
        if ctx.get_parameter_source(name) is not ParameterSource.DEFAULT_MAP:
            continue
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str):
                parts = dict.fromkeys((text, *text.split(","), text.partition("=")[2]))
                yield from ((name, part) for part in parts if part)


def _value(path: Path, key: str, value: Any, multiple: bool) -> Any:
    """One value, or for an option that may be repeated a list; a mapping gives KEY=VALUE texts."""
    if multiple and isinstance(value, dict):
        value = [f"{name}={inner}" for name, inner in value.items()]
    items = value if multiple and isinstance(value, list) else [value]
    if any(item is None or isinstance(item, dict | list) for item in items):
        raise InputError(
            f"{path}: {key}: expected "
            f"{'a value, a list or a mapping of values' if multiple else 'one value'}"
        )
    texts = [item if isinstance(item, bool) else str(item) for item in items]
    return texts if multiple else texts[0]


@cli_command(
    *("localizer", "localizer_args", *PAIR, *FACTS, "grafts", "suite", "layers", "limit"),
    *("metric", "seed", *COMPUTING, "output_dir", "config", "dry_run", "as_json", "quiet"),
    epilog="Exit status: 0 done; 1 ran, and something did not hold; 2 wrong input; 130 "
    "interrupted.",
    localizer={
        "multiple": True,
        "default": ["dynamic_graft"],
        "help": "Localizer; several with commas.",
    },
    localizer_args={
        "metavar": "[NAME.]KEY=VALUE",
        "help": "Argument of all localizers, or of the one named; may be repeated.",
    },
    model={
        "multiple": True,
        "metavar": "NAME|all",
        "help": "Model pair by name, see `kgbench ls models`; several with commas; all: every "
        "shipped pair, or plant of --suite planted.",
    },
    config={"is_eager": True, "callback": read_config},
    quiet=VERDICT_ONLY,
)
def eval_command(
    *,
    config: File | None,
    dry_run: bool,
    as_json: bool,
    **_others: Any,
) -> Output:
    """Measure where a finetuned fact is retrieved from, by one or several localizers.

    Runs every configuration of the suite on every prompt, prints a table that
    ends with a verdict, and writes a record and a picture. A run whose record
    exists already is not computed again.

    \b
    kgbench eval --localizer dynamic_graft --model tiny-gemma
    kgbench eval --model all --localizer dynamic_graft,activation_patch
    kgbench eval --model tiny-gemma --prompt qa --graft "LT:o+ffn@second_half,FE"
    kgbench eval --suite planted --localizer oracle,random,weight_delta
    kgbench eval --recipient before/ --donor after/ --dataset facts.jsonl

    Args:
        config: YAML with these options as keys; options given here win.
        dry_run: Only say what it would take: forwards, token rows, memory, seconds.
        as_json: One JSON object on stdout, all else on stderr; of several runs {"runs": [...]}.
    """  # noqa: D301 (click reads the character, not its escape)
    context = click.get_current_context()
    try:
        return run_all(context.params)
    except InputError as error:  # with the file and key of a value that it quotes
        keys = [key for key, value in _from_file(context) if repr(value) in str(error)]
        if config is None or not keys:
            raise
        raise InputError(f"{config}: {keys[0]}: {error}") from None


Options = Mapping[str, Any]


def run_all(options: Options) -> Output:
    """Run one job per localizer and model pair, of a suite of plants per plant; print results."""
    localizers = listed(options["localizer"])
    if not localizers:
        raise InputError("--localizer: expected a name, see `kgbench ls localizers`")
    planted = _check(options)
    specs: list[Spec] = []
    for model in models_of(options, planted):  # a pair's runs in turn: it is loaded once
        specs += [spec_of(options, localizer=name, model=model) for name in localizers]
    for line in _check_specs(specs):
        click.echo(f"kgbench: warning: {line}", err=True)
    answers = (
        _forecasts(specs, options) if options["dry_run"] else _answers(specs, options, planted)
    )
    status = 2 if any(answer.get("lacking") for answer in answers) else 0
    return Output(json=answers[0] if len(answers) == 1 else {"runs": answers}, status=status)


def _forecasts(specs: Sequence[Spec], options: Options) -> list[dict[str, Any]]:
    """What each run would take, and for want of what it would stop."""
    from kgbench.runner import Pairs, dry_run
    from kgbench.runner.costs import cost_table

    loaded, answers = Pairs(), []
    for spec in specs:
        cost, lacking = dry_run(spec, settings_of(options), loaded), _lacking(spec)
        if not (options["as_json"] and options["quiet"]):
            headers, rows = cost_table([cost])
            stop = [["the run would stop", lacking]] if lacking else []
            click.echo(table_text(headers, [*rows, *stop]))
        answer = {"model": spec.model, "localizer": spec.localizer, **cost.to_json()}
        answers.append({**answer, "lacking": lacking})
    return answers


def _lacking(spec: Spec) -> str | None:
    """Why a run of a pair without a donor would stop; its forecast is given all the same."""
    from kgbench.runner import check
    from kgbench.runner.job import check_donor

    try:
        check_donor(check(spec).spec)
    except ModelError as error:
        return str(error)
    return None


def _answers(specs: Sequence[Spec], options: Options, planted: bool) -> list[dict[str, Any]]:
    """Run all jobs and print them; answers are sorted by localizer."""

    @cache
    def loaded() -> Pairs:
        from kgbench.runner import Pairs  # loads torch, which runs that are known do without

        return Pairs()

    quiet = options["quiet"]
    runs: list[Run] = []
    by_localizer: dict[str, list[Run]] = {}
    for spec in specs:
        run = _run(spec, options, loaded)
        runs.append(run)
        by_localizer.setdefault(spec.localizer, []).append(run)
        if not planted and not quiet:
            _print(run)
        pictures = write_pictures(run.record, run.path)  # figures are shown first
        if not planted and not quiet:
            click.echo(f"picture  {', '.join(map(str, pictures))}")
    if not (options["as_json"] and quiet) and (quiet or not planted):
        _print_verdicts(runs, quiet)
    if planted:
        if not quiet:
            _print_plants(list(by_localizer.values()))
        return list(map(_plants_json, by_localizer.values()))
    return [run.to_json() for run in chain.from_iterable(by_localizer.values())]


def _check_specs(specs: Sequence[Spec]) -> list[str]:
    """Check all specifications before anything heavy is loaded or run.

    Returns:
        Warnings about what can be run but hardly is what was meant.
    """
    from kgbench.runner import check
    from kgbench.runner.workload import check_different, idle_donors, unlearned

    for spec in specs:
        check_different(spec)
    works = list(map(check, specs))
    warnings = dict.fromkeys([*map(unlearned, works), *map(idle_donors, works)])
    if len(specs) > 1:
        from kgbench.runner.third_party import method_of

        for spec in specs:
            try:
                method_of(spec)
            except UnknownNameError as error:
                others = [each.localizer for each in specs if each.localizer != spec.localizer]
                hint = ""
                if others and error.name in spec.localizer_args:
                    hint = (
                        " To give it to one localizer, write --localizer-arg "
                        f"{others[0].rpartition(':')[2]}.{error.name}="
                        f"{spec.localizer_args[error.name]}."
                    )
                raise InputError(f"{error}{hint}") from None
    return [line for line in warnings if line is not None]


def _check(options: Options) -> bool:
    """Refuse what cannot be a job before anything heavy is loaded.

    Returns:
        Whether the suite is about plants.
    """
    from kgbench.runner.workload import load_suite

    planted = options["suite"] is not None and load_suite(options["suite"]).truth
    models = listed(options["model"])
    check_options(options, bool(models) or planted)
    if len(models) > 1 or "all" in models:
        for name in ("recipient", "donor"):
            if options[name]:
                raise InputError(
                    f"--{name} is about one pair, and --model names several: give one --model, or "
                    f"leave out --{name}"
                )
    return planted


def models_of(options: Options, planted: bool = False) -> tuple[str | None, ...]:
    """Named pairs, `all` for all shipped ones; in a suite of plants, the shipped plants in them."""
    from kgbench.models.catalog import shipped
    from kgbench.runner.workload import planted_models

    names = listed(options["model"])
    models: list[str] = []
    if planted and not any(options[name] for name in ("recipient", "donor", "dataset")):
        for name in names or ("all",):
            models += planted_models(None if name == "all" else name) or (name,)
    else:
        for name in names:
            models += shipped() if name == "all" else (name,)
    return tuple(dict.fromkeys(models)) or (None,)


def _run(spec: Spec, options: Options, loaded: Callable[[], Pairs]) -> Run:
    from kgbench.runner import known_run

    settings = settings_of(options)
    if (run := known_run(spec, settings)) is not None:
        return run
    from kgbench.runner import run_job

    with progress(shown=not options["quiet"]) as report:
        return run_job(spec, settings, report, loaded())


def _print(run: Run) -> None:
    from kgbench.numbers import duration_text
    from kgbench.report.run_report import record_report

    computed = f"computed in {duration_text(run.record.cost.seconds)}"
    if run.reused:
        computed = "computed before: this run computed nothing"
    donors = trained_lines(run.record.notes.get("origins"))
    report = record_report(run.record)
    Output([report, "", computed, *donors, f"record   {run.path}"]).print()


def _print_verdicts(runs: Sequence[Run], alone: bool) -> None:
    """A line on each of several runs; of one run its verdict, where nothing else is printed."""
    from kgbench.stats import verdict_of

    if len(runs) > 1:
        if not alone:
            click.echo()
        rows = []
        for run in runs:
            record = run.record
            rows.append([record.model, record.identity.localizer.name, verdict_of(record)])
        click.echo(table_text(["model", "localizer", "verdict"], rows))
    elif alone:
        click.echo(verdict_of(runs[0].record))


def trained_lines(origins: object) -> list[str]:
    """One line per model of a pair that was trained here.

    Args:
        origins: Where the models of the pair are from, by name, as a record's notes have it.
    """
    from kgbench.models.catalog import is_donor_name

    parts = origins.items() if isinstance(origins, dict) else ()
    lines = []
    for part, origin in parts:
        if is_donor_name(str(origin)):
            lines.append(f"donor    {part} is {origin}, trained with kgbench train")
    return lines


def _print_plants(by_localizer: Sequence[Sequence[Run]]) -> None:
    from kgbench.report.run_report import PLANTS_LEGEND, plants_report

    parts: list[str | Report] = []
    for runs in by_localizer:
        parts += [plants_report([run.record for run in runs]), ""]
    paths = [f"record   {run.path}" for run in chain.from_iterable(by_localizer)]
    Output([*parts, PLANTS_LEGEND, "", *paths]).print()


def _plants_json(runs: Sequence[Run]) -> dict[str, Any]:
    """One object per localizer, with a row per plant."""
    rows = []
    for run in runs:
        assert run.record.planted is not None
        facts = max(row.n for row in run.record.rows)
        rows.append(
            {
                "plant": run.record.model,
                "n": facts,
                **run.record.planted.answer(),
                "record": str(run.path),
            }
        )
    return {"localizer": runs[0].record.identity.localizer.name, "suite": "planted", "rows": rows}


def write_pictures(record: Record, folder: Path) -> list[Path]:
    """Draw a record's missing pictures (PNG, SVG): bars; of ranked sites the curve and the map.

    The names of those that depend on it hold the metric, since a stored run can be shown on another
    one.

    Raises:
        OutputError: The folder cannot be written.
    """
    from kgbench.localizers import score_meaning
    from kgbench.report.bars import picture_bytes
    from kgbench.report.site_maps import drawing, pictures_of

    paths: list[Path] = []
    for kind in pictures_of(record):
        name = kind if kind == "map" else f"{kind}-{record.metric}"
        files = [folder / f"{name}.{suffix}" for suffix in ("png", "svg")]
        if not all(path.exists() for path in files):
            draw = drawing([record], kind, score_meaning)
            contents = picture_bytes(draw, [record], "png", "svg")
            for path, content in zip(files, contents, strict=True):
                write_file(path, content)
        paths += files
    return paths
