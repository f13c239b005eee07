"""The command line: what it offers, how it answers, how it refuses."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from importlib import import_module, metadata
from pathlib import Path
from socketserver import BaseRequestHandler, TCPServer

import click
import fake_runs
import forks
import pytest
from commands import Answer, refused
from whole_donors import whole_donor

from kgbench.cli import SECTIONS, command
from kgbench.cli.eval import models_of
from kgbench.cli.options import settings_of, spec_of
from kgbench.data import load_dataset
from kgbench.extras import install_command
from kgbench.models.catalog import plants, plants_in_shipped_pairs
from kgbench.records import RecordStore
from kgbench.runner import Settings, Spec

ROOT = Path(__file__).parent.parent
PRE = ROOT / "kgbench" / "models" / "zoo" / "tiny-gemma" / "recipient"
TINY = "--model tiny-gemma --limit 4"


def started(line: str = "", *more: object, **options: object) -> subprocess.Popen[str]:
    """A command in a process of its own, which hears Ctrl-C although whoever runs the tests may not
    (`nohup make test &`).
    """
    words = [sys.executable, "-m", "kgbench", *line.split(), *map(str, more)]
    piped = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
        "preexec_fn": forks.hears_interrupts if os.name == "posix" else None,
    }
    return forks.Popen(words, cwd=ROOT, **piped, **options)  # type: ignore[call-overload]


# --------------------------------------------------------------------------------------------- help


def test_help_lists_every_command(run) -> None:
    """`kgbench`, `kgbench -h` and `kgbench --help` name every command beside a heading, each with a
    line that is not cut off, and fit on a screen.
    """
    texts = [run(*arguments).out for arguments in ((), ("-h",), ("--help",))]
    assert texts[0] == texts[1] == texts[2]
    assert texts[0].count("\n") <= 40
    for heading, names in SECTIONS.items():
        assert re.search(rf"^  {heading} +{next(iter(names))} ", texts[0], re.MULTILINE), heading
    for name in listed_commands():
        assert re.search(rf"^  [\w ]{{8}}{name} +\S.*[^.]\.$", texts[0], re.MULTILINE), name
    made: dict[str, click.Command] = {}
    members: list[click.Command] = []
    for path in (ROOT / "kgbench" / "cli").glob("[a-z]*.py"):
        for name, value in vars(import_module(f"kgbench.cli.{path.stem}")).items():
            if isinstance(value, click.Group):
                members += value.commands.values()
            if isinstance(value, click.Command) and name.endswith("_command"):
                made[name.removesuffix("_command").replace("_", "-")] = value
    assert len(made) > 15
    for name, each in made.items():
        assert name in listed_commands() or each in members, name


def test_commands_are_few() -> None:
    """No more commands and options than one can know: 25 and 230."""
    context, leaves, options = click.Context(command), 0, 0
    commands = [command.get_command(context, name) for name in listed_commands()]
    for each in commands:
        commands += each.commands.values() if isinstance(each, click.Group) else ()
        leaves += not isinstance(each, click.Group)
        options += sum(isinstance(parameter, click.Option) for parameter in each.params)
    assert leaves <= 25 and options <= 230


def listed_commands() -> list[str]:
    """Names of all commands that the help lists."""
    return command.list_commands(command.make_context("kgbench", [], resilient_parsing=True))


def test_the_help_imports_no_command() -> None:
    """What the help shows of each of kgbench's own commands is known without its module, so that
    the help takes no time. Commands by entry points are made with `kgbench.cli.options`.
    """
    program = "import sys; from kgbench.cli import main; main(['--help']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    loaded = {*done.stdout.splitlines()[-1].split()}
    assert not loaded & {"torch", "numpy"}
    own = {name.removeprefix("kgbench.cli.") for name in loaded if name.startswith("kgbench.cli.")}
    assert own == {"output", "options"}


@pytest.mark.parametrize(
    ("option", "names"),
    [
        ("--results", ("show", "compare", "rerun", "submit")),
        ("--limit", ("answers", "specificity", "tokens")),
    ],
)
def test_one_word_for_one_thing(run, option: str, names: tuple[str, ...]) -> None:
    """Where records are read it is --results, and so many facts is --limit, everywhere."""
    for name in names:
        assert f"  {option}" in run(name, "--help").out


@pytest.mark.parametrize("name", ["eval", "check-localizer"])
def test_examples_have_lines_of_their_own(run, name: str) -> None:
    """Every command that a docstring shows as an example stands on a line of its own in the help."""
    text = run(name, "--help").out
    context = command.make_context("kgbench", [name], resilient_parsing=True)
    found = command.get_command(context, name)
    assert found is not None and found.help is not None
    examples = [line.strip() for line in found.help.split("\b\n")[1].splitlines() if line.strip()]
    assert len(examples) >= 2 and all("kgbench " in line for line in examples)
    assert [line.strip() for line in text.splitlines() if line.strip() in examples] == examples


def test_version(run) -> None:
    """`--version` prints name and version."""
    assert re.fullmatch(r"kgbench \d+\.\d+\.\d+\S*\n", run("--version").out)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script(run, shell: str) -> None:
    """Each shell gets a script that asks this program."""
    assert "_KGBENCH_COMPLETE" in run("--completion", shell).out


@pytest.mark.nightly
def test_completion_knows_our_names() -> None:
    """A model's name is completed, and a prompt's after a comma too."""

    def complete(*words: str) -> str:
        environment = {
            **os.environ,
            "_KGBENCH_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(words),
            "COMP_CWORD": str(len(words) - 1),
        }
        return started(env=environment).communicate()[0]

    assert "plain,tiny-gemma\n" in complete("kgbench", "eval", "--model", "tiny-g")
    assert "plain,qa,headline\n" in complete("kgbench", "eval", "--prompt", "qa,headl")


# ------------------------------------------------------------------------------------------ listing


@pytest.mark.parametrize("kind", ["models", "datasets", "prompts", "localizers", "suites"])
def test_lists_have_a_line_each(run, kind: str) -> None:
    """The table and the JSON name the same things, each with a description."""
    names = json.loads(run("ls", kind, "--json").out)
    table = run("ls", kind).out
    assert names and all(names.values())
    assert all(re.search(rf"^{re.escape(name)} ", table, re.MULTILINE) for name in names)


def test_list_of_runs(run, tmp_path: Path) -> None:
    """Each record of a folder has one line with what was run and its verdict."""
    table = fake_runs.rows()
    stored = RecordStore(tmp_path).write(fake_runs.record(table), table)
    (row,) = json.loads(run("ls", "runs", "--results", str(tmp_path), "--json").out)["runs"]
    assert stored.name.endswith(row["id"])
    assert (row["method"], row["prompts"], row["grafts"]) == (
        "dynamic_graft",
        "headline, qa",
        "FE, LT, FE+LT",
    )
    assert (row["suite"], row["limit"], row["n"]) == ("pathways", "", "50")
    assert row["verdict"].startswith("FE+LT carries")
    lines = run("ls", "runs", "--results", str(tmp_path)).out.splitlines()
    assert len(lines) == 3 and lines[2].startswith(f"{row['id']}  dynamic_graft")


def test_kinds_with_their_numbers(run, tmp_path: Path) -> None:
    """Without a kind, each has the number of entries that its list has."""
    table = fake_runs.rows()
    RecordStore(tmp_path).write(fake_runs.record(table), table)
    counts = json.loads(run("ls", "--json", "--results", tmp_path).out)
    assert counts.pop("runs") == 1
    for kind, count in counts.items():
        assert count == len(json.loads(run("ls", kind, "--json").out)), kind
        assert re.search(rf"^kgbench ls {kind} +{count}$", run("ls").out, re.MULTILINE)


def test_parameters_of_a_localizer(run) -> None:
    """Each parameter has its default, what it takes, and a line."""
    found = json.loads(run("ls", "localizers", "mask_graft", "--json").out)
    assert found["steps"] == {
        "default": "200",
        "values": "whole number",
        "about": "Steps of Adam; each draws a sample of prompts.",
    }
    assert found["by_region"]["values"] == "true or false"
    assert all(row["about"] for row in found.values())


def test_the_machine_has_a_line_on_each_extra(run, monkeypatch) -> None:
    """Each extra of the package is installed, or is given with the command that installs it."""
    found = metadata.version
    alone = {"anywidget", "peft", "datasets", "lm-eval", "nnsight", "playwright", "pytest", "ruff"}
    alone |= {"inspect-ai", "submitit", "ray", "s3fs", "moto", "lm_eval", "gguf"}

    def version(name: str) -> str:
        if name in alone:
            raise metadata.PackageNotFoundError(name)
        return found(name)

    monkeypatch.setattr(metadata, "version", version)
    answer = run("ls", "machine")
    assert answer.status == 0
    lines = {}
    for line in answer.out.splitlines():
        if line.startswith("extra"):
            lines[line.split()[1]] = line
    assert {*lines} == {*metadata.metadata("kgbench").get_all("Provides-Extra")}
    assert all(f"not installed: {install_command(name)}" in line for name, line in lines.items())
    assert lines["lora"].endswith(" pip install 'peft>=0.17'")
    assert "transformer-lens" in lines["bench"], "an extra in an extra is resolved"
    told = json.loads(run("ls", "machine", "--json").out)
    assert not any(told["extras"].values()) and told["facts"]["torch"] == found("torch")
    monkeypatch.setenv("KGBENCH_HOME", "elsewhere")
    told = json.loads(run("ls", "machine", "--json").out)
    assert Path(told["facts"]["donors"]) == Path("elsewhere") / "donors"


# ----------------------------------------------------------------------------------------- refusals


def test_a_hub_id_without_network_fails_at_once(tmp_path: Path) -> None:
    """A Hub id that cannot be reached is refused in one line, without retries: few connections are
    tried, each of which breaks.
    """
    tried = list[object]()

    class Broken(BaseRequestHandler):
        def handle(self) -> None:
            tried.append(self.client_address)

    with TCPServer(("127.0.0.1", 0), Broken) as hub:
        threading.Thread(target=hub.serve_forever).start()
        try:
            _refused_without_hub(tmp_path, f"http://127.0.0.1:{hub.server_address[1]}")
        finally:
            hub.shutdown()
    assert 1 <= len(tried) <= 2


def _refused_without_hub(tmp_path: Path, endpoint: str) -> None:
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "0",
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(tmp_path / "hub"),
    }
    pair = "--recipient nobody/nothing --donor sft=nobody/nothing-sft --dataset tiny_movies"
    process = started(f"eval {pair} --output-dir", tmp_path, env=environment)
    out, err = process.communicate()
    assert "nobody/nothing" in refused(Answer(process.returncode, out, err))


def test_a_mistake_that_needs_no_model_is_told_before_torch_is_loaded() -> None:
    """What names and files on this machine tell is refused without the seconds that torch takes to
    load.
    """
    mistakes = (
        ("--localizer", "dynamic_grafts"),
        ("--localizer", "patching"),
        ("random", "tiny-gemma"),  # words without their options
        ("--suite", "hybrid"),
        ("--dtype", "flot16"),
        ("--graft", "M"),
        ("--donor", str(PRE)),
        ("--dataset", "tiny_movie"),
    )
    lines = [["eval", *TINY.split(), *mistake] for mistake in mistakes]
    program = (
        "import sys\nfrom kgbench.cli import main\n"
        f"for line in {lines!r}:\n    print(main(line), 'torch' in sys.modules, line[-2])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    told = [f"2 False {option}" for option, _ in mistakes]
    assert done.stdout.splitlines() == told, done.stderr
    assert done.stderr.count("kgbench: error: ") == len(mistakes)


def test_facts_that_the_donor_did_not_learn_are_told_of_first(run, tmp_path: Path) -> None:
    """A data set of other facts than the donor's is evaluated after a line on what to do; a part of
    the donor's facts without one.
    """
    other, part = tmp_path / "other.csv", tmp_path / "part.csv"
    other.write_text("first_actor,second_actor\nAna Lee,Bo Kim\nCy Dow,Di Fox\n")
    shipped = load_dataset("tiny_movies").facts[5:7]
    rows = (f"{fact.fields['first_actor']},{fact.fields['second_actor']}\n" for fact in shipped)
    part.write_text("first_actor,second_actor\n" + "".join(rows))
    told = {}
    for file in (other, part):
        columns = "--column first_actor=first_actor --column second_actor=second_actor"
        mine = ("--dataset", file, "--template", "mine={first_actor} met", "--prompt", "mine")
        where = ("--output-dir", tmp_path / "out", "-q")
        answer = run(f"eval --model tiny-gemma {columns}", *mine, *where)
        assert answer.status == 0
        told[file] = answer.err
    assert told[other].startswith(
        "kgbench: warning: the donor of tiny-gemma learned tiny_movies, and none of the facts of"
    )
    assert f"kgbench train --model tiny-gemma --dataset {other} --recipe aggressive" in told[other]
    assert told[part] == ""


# --------------------------------------------------------------------------------------------- runs


def test_json_is_all_that_stdout_holds(tmp_path: Path) -> None:
    """With --json, stdout is one object of the documented keys, and the table is on stderr."""
    out, err = started(f"eval {TINY}", "--output-dir", tmp_path, "--json").communicate()
    answer = json.loads(out)
    keys = "id model dataset localizer metric path seconds plain_forward_ratio rows synergy"
    assert list(answer) == [*keys.split(), "first_tokens", "verdict"]
    scores = "top1 top5 mrr rank prob logprob sufficiency necessity"
    for row in answer["rows"]:
        assert {"prompt", "graft", "n", "dropped", *scores.split()} <= set(row)
        for figure in (row["top5"], row["sufficiency"], row["necessity"]):
            assert set(figure) in ({"value", "low", "high"}, {"undefined"})
    assert {"PRE", "SFT", "ALL", "FE+LT", "(FE+LT)^C"} <= {row["graft"] for row in answer["rows"]}
    assert answer["verdict"] in " ".join(err.split())
    assert (Path(answer["path"]) / "record.json").is_file()


def test_the_second_run_computes_nothing_and_says_so(run, tmp_path: Path) -> None:
    """An identical run, also with another batch size, executor and name of the dtype, finds its
    record; the shown table is the same.
    """
    other = "--batch-size 1 --executor rows --dtype fp32"
    first, second = (
        run(f"eval {TINY} --prompt qa {options} --output-dir", tmp_path)
        for options in ("--batch-size auto", other)
    )
    assert first.status == second.status == 0
    assert "computed in" in first.out and "computed nothing" in second.out
    folder = re.search(r"^record +(\S+)", second.out, re.MULTILINE)
    assert folder is not None
    shown = run("show", folder[1]).out
    assert shown.strip() in first.out and shown.strip() in second.out
    identity = json.loads(run("show", folder[1], "--json").out)["id"]
    assert (
        run("show", identity[:8], "--output-dir", tmp_path).out
        == shown
        == run("show", identity[:8], "--results", tmp_path).out
    )
    assert [path for path in Path(folder[1]).iterdir() if path.suffix == ".png"]


def test_several_models_and_localizers_are_one_object_and_one_table(run, tmp_path: Path) -> None:
    """Every localizer runs on every model that is named; JSON is one object that lists the runs,
    and -q a table of the verdicts.
    """
    runs = "--model tiny-gemma,tiny-gpt2 --limit 2 --localizer none,all --prompt headline"
    several = (f"eval {runs} --graft FE,LT --output-dir", tmp_path)
    answer = json.loads(run(*several, "--json", "-q").out)
    pairs = [(entry["localizer"], entry["model"]) for entry in answer["runs"]]
    assert pairs == [
        ("none", "tiny-gemma"),
        ("none", "tiny-gpt2"),
        ("all", "tiny-gemma"),
        ("all", "tiny-gpt2"),
    ]
    assert {"FE", "LT"} <= {row["graft"] for row in answer["runs"][0]["rows"]}
    quiet = run(*several, "-q").out
    assert len(re.findall(r"^tiny-\w+ +(?:none|all) +\S", quiet, re.MULTILINE)) == 4
    assert run(*several).out.endswith(f"\n\n{quiet}")
    assert all(" ".join(entry["verdict"].split()[:4]) in quiet for entry in answer["runs"])


def test_all_models_are_the_shipped_pairs_and_all_plants() -> None:
    """`--model all` is every shipped pair; in the suite of plants, and without --model there, it is
    every plant.
    """
    pairs = ["tiny-gemma", "tiny-llama", "tiny-gpt2", "tiny-pythia"]
    assert models_of(named()) == (None,) and models_of(named("all")) == tuple(pairs)
    assert models_of(named("tiny-gpt2,all")) == (
        "tiny-gpt2",
        "tiny-gemma",
        "tiny-llama",
        "tiny-pythia",
    )
    assert models_of(named(), planted=True) == models_of(named("all"), planted=True)
    assert models_of(named(), planted=True) == plants_in_shipped_pairs()
    own = tuple(name for name in plants() if name.startswith("tiny-gemma."))
    last = own[-1]
    assert models_of(named("tiny-gemma"), planted=True) == own
    assert models_of(named(last, "tiny-gemma"), planted=True) == (last, *own[:-1])


def named(*models: str) -> dict[str, object]:
    """Options of `kgbench eval` that name models."""
    return {"model": models, "recipient": None, "donor": (), "dataset": None}


@pytest.mark.nightly
def test_a_ranking_has_its_pictures_and_its_curve(run, tmp_path: Path) -> None:
    """A method that ranks sites leaves the map and the curve beside the bars; its JSON holds the
    curve.
    """
    ranking = "--localizer random --localizer-arg random.seed=3 --prompt qa"
    arguments = (f"eval {TINY} {ranking} --output-dir", tmp_path)
    answer = json.loads(run(*arguments, "--json", "-q").out)
    names = {"chart-top5", "curve-top5", "map"}
    assert {p.name for p in Path(answer["path"]).iterdir()} == {
        "record.json",
        "facts.parquet",
        "seal.json",
        *(f"{name}{suffix}" for name in names for suffix in (".png", ".svg")),
    }
    budgets = [point["budget"] for point in answer["curve"]["qa"]["points"]]
    assert budgets == [*(0, 0.1, 0.2, 0.5, 1, 2, 5), *(10, 20, 50, 100)]
    assert set(answer["curve"]["qa"]["area"]) in ({"value", "low", "high"}, {"undefined"})
    text = " ".join(run(*arguments).out.split())
    assert "area under the recovery curve" in text
    assert "of that to rank the sites" in text
    assert "computed nothing" in text


def test_a_dry_run_says_that_the_run_would_stop(run, tmp_path: Path) -> None:
    """Of a pair without a donor, with the words of the run itself and its exit status."""
    asked = ("eval", "--model", "gemma-2b", "--limit", "2", "--output-dir", tmp_path)
    refusal = refused(run(*asked)).removeprefix("kgbench: error: ").strip()
    forecast = run(*asked, "--dry-run", "--json")
    assert forecast.status == 2 and json.loads(forecast.out)["lacking"] == refusal
    assert "the run would stop" in forecast.err
    assert json.loads(run(f"eval {TINY}", "--dry-run", "--json").out)["lacking"] is None
    assert "token rows" in run(f"eval {TINY} --dry-run").out


def test_swapped_models_are_asked_about(run, tmp_path: Path) -> None:
    """Where the model before finetuning is given as the one after, also of a record that exists."""
    after = whole_donor("tiny-gemma", tmp_path / "after")
    facts = ("--dataset", "tiny_movies", "--limit", "20", "--prompt", "headline")
    asked = ("eval", *facts, "--output-dir", tmp_path / "runs", "-q")
    question = "are base and finetuned model swapped?"
    for base, finetuned in ((after, PRE), (after, PRE), (PRE, after)):
        answer = run(*asked, "--base", base, "--finetuned", finetuned)
        assert answer.status == 0, answer.err
        assert (question in answer.out) == (base == after)


def test_no_color_and_no_markup(tmp_path: Path) -> None:
    """Output that goes to no terminal holds no escape codes; a name with markup in it stands as it
    is.
    """
    line, environment = "eval --model [red]x[/red] --output-dir", {**os.environ, "NO_COLOR": "1"}
    out, err = started(line, tmp_path, env=environment).communicate()
    assert "[red]x[/red]" in err and "\x1b" not in out + err


def test_a_closed_pipe_is_quiet() -> None:
    """A reader that goes away early leaves no traceback."""
    process = started("ls", "prompts")
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    process.wait()
    assert err == ""


@pytest.mark.posix
def test_an_interrupted_run_leaves_nothing_half_written_and_is_resumed(run, tmp_path: Path) -> None:
    """Ctrl-C (status 130 and one line) leaves no record; the same run then completes from what was
    done.
    """
    several = "--limit 5 --prompt headline,qa,movie_title,new_film --json -q"
    arguments = (f"eval --model tiny-gpt2 {several} --output-dir", tmp_path)
    process = started(*arguments, "--executor", "sequential", "--batch-size", "1")
    while not list(tmp_path.glob(".partial/*/*")) and process.poll() is None:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert out == "" and not list(tmp_path.glob("*/record.json"))
    assert process.returncode == 130 and err.strip().count("\n") == 0
    assert "the same command goes on from what was finished" in err
    answer = json.loads(run(*arguments).out)
    assert {row["n"] for row in answer["rows"]} == {5}
    assert not list(tmp_path.glob(".partial/*"))


@pytest.mark.parametrize(
    ("name", "told"), [("train", "goes on from what"), ("audit", "goes on from what"), ("ls", None)]
)
def test_an_interrupted_command_says_what_it_kept(
    run, monkeypatch, name: str, told: str | None
) -> None:
    """Only a command that keeps what was finished promises to go on from it."""

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "invoke", interrupted)
    answer = run(name)
    assert answer.status == 130 and answer.err.strip().count("\n") == 0
    assert (
        told in answer.err
        if told
        else answer.err.strip().endswith("interrupted; nothing half-written is left")
    )


@pytest.mark.parametrize("name", ["answers", "heads", "specificity", "tokens", "audit"])
def test_questions_are_asked_of_a_run(name: str) -> None:
    """Pair and facts are those of a run and no option."""
    asked = command.get_command(click.Context(command), name)
    assert asked is not None
    options = {option.name for option in asked.params}
    assert not options & {"model", "recipient", "donor", "revision", "dataset", "subject", "column"}
    assert options >= {"device", "output_dir"}


def test_options_are_read_as_fields() -> None:
    """What an option is given becomes the field of its name; the others keep their defaults."""
    context = click.Context(command)
    evaluate = command.get_command(context, "eval")
    assert evaluate is not None
    given = "--model tiny-gemma --graft FE,LT --attention eager --seed 3"
    with evaluate.make_context("eval", given.split()) as made:
        options = made.params
    spec = spec_of(options, localizer="random", model="tiny-gemma")
    assert spec == Spec(localizer="random", model="tiny-gemma", grafts=("FE", "LT"), seed=3)
    assert settings_of(options) == Settings(attention="eager")
