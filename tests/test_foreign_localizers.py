"""Localizers that are not kgbench's own: whatever they do, one line says so, and no record holds
what they spoilt.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import dedent

import forks
import pytest
from lm_eval.api.instance import Instance
from sessions import counts, session, write

from kgbench.cli import main
from kgbench.errors import InputError, UnknownNameError
from kgbench.estimate import Estimate
from kgbench.harness.model import KgbenchLM
from kgbench.leaderboard.limits import FACTS
from kgbench.records import RecordStore, read_facts, read_record
from kgbench.runner import Pairs, Settings, Spec, check, measure, run_job
from kgbench.runner.rerun import Repetition, repeat
from kgbench.runner.run import compute_job
from kgbench.runner.sources import Sources
from kgbench.runner.third_party_process import Method, _formats, method_of

FEW = ("--model", "tiny-gpt2", "--limit", "4", "--prompt", "headline")
HEADS = {
    "treat": "def treat(self, pair, prompts, sites):",
    "fitted": "def fitted(self, pair, prompts):",
    "variants": "def variants(self):",
    "units": "def units(self, pair, prompts):",
    "scores": "def scores(self, pair, prompts):",
}


def written(folder: Path, method: str, body: str) -> str:
    """A localizer one of whose methods does as it is told; gives what to name it by."""
    base = "random.Random" if method == "scores" else "dynamic_graft.DynamicGraft"
    module, _, derived = base.partition(".")
    head = (
        "import sys\nimport torch\nfrom kgbench.errors import InputError, LawError\n"
        f"from kgbench.localizers.{module} import {derived} as Base\n"
    )
    text = f'{head}class Mine(Base):\n    name = "mine"\n    about = "mine"\n    {HEADS[method]}\n'
    (folder / "mine.py").write_text(
        text + "".join(f"        {line}\n" for line in dedent(body).strip().splitlines())
    )
    return f"{folder / 'mine.py'}:Mine"


def declaration(name: str, **arguments: str) -> Method:
    """What a localizer declares of itself, in a process of its own."""
    return method_of(check(Spec(localizer=name, model="tiny-gpt2", localizer_args=arguments)))


def refused(name: str, folder: Path, **options: str) -> str:
    """The line with which a job ends, in this process, and no record."""
    spec = Spec(model="tiny-gpt2", localizer=name, prompts=("headline",), limit=4, **options)
    with pytest.raises(InputError) as caught:
        compute_job(check(spec), Settings(output_dir=folder / "runs"))
    assert "\n" not in str(caught.value)
    assert not list(folder.glob("runs/*/record.json"))
    return str(caught.value)


RAISED = {
    "raise KeyError('boom')": "KeyError: 'boom'",
    "sys.exit('boom')": "SystemExit: boom",
    "raise GeneratorExit": "GeneratorExit",
    "raise KeyboardInterrupt": "KeyboardInterrupt",
    "raise MemoryError": "MemoryError",
    "raise LawError('boom')": "LawError: boom",
    "helped = lambda: 1 / 0\nhelped()": "ZeroDivisionError: division by zero",
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("method", "raised"),
    [(method, [*RAISED][(n + step) % 7]) for n, method in enumerate(HEADS) for step in (0, 3)],
)
def test_what_it_raises_is_a_line(tmp_path: Path, method: str, raised: str) -> None:
    """Which method raised what in which line of the author's file, and the command that says more:
    all that is raised, by each method two of it.
    """
    name = written(tmp_path, method, raised)
    told = refused(name, tmp_path, suite="budget" if method == "units" else "pathways")
    assert (
        told == f"localizer 'mine': {method} raised {RAISED[raised]} (mine.py:9); run `kgbench"
        f" check-localizer {name}`"
    )


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("method", "given", "told"),
    [
        ("treat", "None", "treat must give one treatment per token"),
        ("treat", "[None for _ in prompts]", "treat must give one treatment per token"),
        (
            "treat",
            "[['PRE' for _ in pair.encoded(p).ids] for p in prompts]",
            "treat must give one treatment per token",
        ),
        ("fitted", "None", "fitted must give an intervention"),
        ("variants", "()", "variants a list of such"),
        ("scores", "None", "scores must give a number for each site"),
    ],
)
def test_what_it_returns_is_checked(tmp_path: Path, method: str, given: str, told: str) -> None:
    """Something of another type is said to be so."""
    assert told in refused(written(tmp_path, method, f"return {given}"), tmp_path)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("edit", "told"),
    [
        ("Add(Hook(99, 'resid_post'), ones)", "an edit is at 'resid_post' of layer 99, not at one"),
        (
            "Add(Hook(1, 'resid'), ones)",
            "an edit is at 'resid' of layer 1, not at one of resid_pre",
        ),
        ("Write(Hook(1, 'resid_post'), Values(torch.ones(3, n)))", "shape [3, 128], not [128]"),
        ("Write(Hook(1, 'heads'), Values(torch.ones(5)))", "numbers of shape [5], not [128]"),
        ("Copy(Hook(1, 'mlp_out'), SourceRun(row), ones)", "shape [128], not [k, 128]"),
        ("Copy(Hook(1, 'mlp_out'), SourceRun(row[1:]))", "a source run has"),
    ],
)
def test_an_edit_that_the_models_cannot_run_with_is_refused(
    tmp_path: Path, edit: str, told: str
) -> None:
    """Of no layer, of no point or of another shape: by a line that says for which fact and graft;
    one of no layer would change nothing.
    """
    body = f"""
    from dataclasses import replace
    from kgbench.engine.edits import Add, Copy, Hook, SourceRun, Values, Write
    n, rows = pair.width, []
    ones = Values(torch.ones(n))
    for row in super().treat(pair, prompts, sites):
        rows.append([replace(each, edits=({edit},)) for each in row])
    return rows"""
    line = refused(written(tmp_path, "treat", body), tmp_path)
    assert line.startswith("localizer 'mine': treat gave what the models cannot run with: ")
    assert told in line and line.endswith("(in fact tiny_movies/0 under ALL)")


CASES = """\
{"kgbench": 1, "subject": "who", "object": "pet", "templates": {"has": "{who} has a"}, "readout": {"sequence": {}}}
{"id": "1", "who": "Ann Lee", "pet": "small cat"}
{"id": "2", "who": "Bo Ray", "pet": "young dog"}
{"id": "3", "who": "Cy Orr", "pet": "small cat", "group": "off"}
{"id": "4", "who": "Di Fox", "pet": "old parrot", "group": "off"}
"""


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("method", "body", "like"),
    [
        ("scores", "return GraftAttribution().scores(pair, prompts)", "graft_attribution"),
        ("treat", "return super().treat(pair, prompts, sites)", "dynamic_graft"),
    ],
)
@pytest.mark.parametrize("readout", [{}, {"readout": "first_token"}])
def test_it_ranks_sites_by_cases_and_by_any_readout(
    tmp_path: Path, method: str, body: str, like: str, readout: dict[str, str]
) -> None:
    """What a built-in method gives it gives, too: of cases alone, which have controls, and of the
    readout that they name or another.
    """
    cases = tmp_path / "pets.jsonl"
    cases.write_text(CASES)
    body = f"from kgbench.localizers.graft_attribution import GraftAttribution\n{body}"
    asked = {"model": "tiny-gpt2", "dataset": str(cases), "suite": "budget", **readout}
    settings = Settings(output_dir=tmp_path / "runs", device="cpu")
    made, built_in = (
        run_job(Spec(localizer=name, **asked), settings)
        for name in (written(tmp_path, method, body), like)
    )
    assert made.record.by_site == pytest.approx(built_in.record.by_site, abs=1e-12)
    assert made.record.rows == built_in.record.rows
    how = Repetition(Sources(dataset=str(cases)), str(tmp_path / "mine.py:Mine"))
    assert repeat(made.record, read_facts(made.path / FACTS), how, settings)[0].agrees


def test_what_its_process_gave_is_kept(tmp_path: Path) -> None:
    """A run whose second half failed does not ask for the first half again."""
    calls = tmp_path / "calls"
    body = f"""
    with open({str(calls)!r}, "a") as file: file.write("x")
    if len(open({str(calls)!r}).read()) == 2: raise KeyError("boom")
    return super().scores(pair, prompts)"""
    name = written(tmp_path, "scores", body)
    spec = Spec(model="tiny-gpt2", localizer=name, prompts=("headline",), limit=4)
    settings = Settings(output_dir=tmp_path / "runs")
    with pytest.raises(InputError, match="scores raised KeyError: 'boom'"):
        run_job(spec, settings)
    assert not run_job(spec, settings).reused
    assert calls.read_text() == "xxx" and not list(tmp_path.glob("runs/.partial/*"))


@pytest.mark.filterwarnings("always")
def test_a_warning_is_shown_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """However often a command loads the file, or the models, that it is about."""
    name = made(tmp_path, "raise ValueError('boom')")
    file = tmp_path / "made.py"
    file.write_text("import warnings\nwarnings.warn('old')\n" + file.read_text())
    assert main(["eval", "--localizer", name, "--model", "tiny-gpt2"]) == 2
    assert capfd.readouterr().err.count("kgbench: warning: old") == 1


@pytest.mark.parametrize("options", [(), ("--dry-run",)])
def test_the_command_says_the_same(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    """The line comes out of the other process; what the localizer printed, to whatever descriptor,
    is not on stdout.
    """
    body = "import os\nos.write(1, b'raw')\nprint('said')\nraise KeyError('boom')"
    where = (*FEW, "--output-dir", str(tmp_path / "runs"), "--json")
    assert main(["eval", "--localizer", written(tmp_path, "treat", body), *where, *options]) == 2
    told = capfd.readouterr()
    assert told.out == ""
    assert "raw" in told.err and "said" in told.err
    assert (
        told.err.count(
            "kgbench: error: localizer 'mine': treat raised KeyError: 'boom' (mine.py:12)"
        )
        == 1
    )
    assert not list(tmp_path.glob("runs/*"))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("method", ["fitted", "scores"])
def test_an_error_that_no_line_of_its_file_raised_is_a_line_too(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], method: str
) -> None:
    """What comes of a spoilt pair in kgbench's own code is told in a line, which says where, as
    what the localizer raises is.
    """
    name = written(
        tmp_path, method, f"pair.recipient = None\nreturn super().{method}(pair, prompts)"
    )
    where = (*FEW, "--output-dir", str(tmp_path / "runs"), "--json")
    assert main(["eval", "--localizer", name, *where]) == 2
    told = capfd.readouterr()
    assert told.out == "" and "Traceback" not in told.err
    (line,) = [line for line in told.err.splitlines() if line.startswith("kgbench: error: ")]
    assert line.startswith(
        f"kgbench: error: localizer {name!r}: AttributeError: 'NoneType' object has no attribute "
    )
    assert line.endswith(f"; run `kgbench check-localizer {name}`")


WEIGHTS = "changed the weights of "
SPOILING = "with torch.no_grad(): list(pair.{model}.parameters())[8].data.add_(1.0)\n{then}"


@pytest.mark.parametrize(
    ("method", "model", "then", "told"),
    [
        ("treat", "recipient", "return super().treat(pair, prompts, sites)", WEIGHTS + "recipient"),
        ("scores", "donors['sft']", "return super().scores(pair, prompts)", WEIGHTS + "sft"),
        ("treat", "recipient", "raise KeyError('boom')", "treat raised KeyError: 'boom'"),
    ],
)
def test_changed_weights_are_noticed(
    tmp_path: Path, method: str, model: str, then: str, told: str
) -> None:
    """No record is written, nothing is kept for a run that resumes, and the pair is loaded anew for
    the next one.
    """
    name = written(tmp_path, method, SPOILING.format(model=model, then=then))
    settings, pairs = Settings(output_dir=tmp_path), Pairs()
    spec = Spec(model="tiny-gpt2", localizer=name, prompts=("headline",), limit=4)
    sources = Sources.of(spec)
    before = pairs.load(sources, settings)
    with pytest.raises(InputError) as caught:
        compute_job(check(spec), settings, pairs=pairs)
    assert told in str(caught.value)
    assert f"run `kgbench check-localizer {name}`" in str(caught.value)
    assert not list(tmp_path.glob("*/record.json")) and not list(tmp_path.glob(".partial/*"))
    assert pairs.load(sources, settings) is not before
    assert pairs.load(sources, settings).changed() == ()


MADE = """\
import os, signal, sys, threading, time
from dataclasses import dataclass
from kgbench.localizers import InterventionLocalizer


@dataclass(frozen=True)
class Made(InterventionLocalizer):
    name = "made"
    about = "does it when it is made"
    window: int = 3

    def treat(self, pair, prompts, sites): ...

    def __post_init__(self):
        {}
"""

ENDS = {
    "os._exit(0)": "localizer {name!r}: its process ended with exit status 0, without a result",
    "os._exit(3)": "localizer {name!r}: its process ended with exit status 3, without a result",
    "os.kill(os.getpid(), signal.SIGSEGV)": (
        "localizer {name!r}: its process ended by signal 11 (Segmentation fault), without a result"
    ),
    "os.kill(os.getpid(), signal.SIGKILL)": (
        "localizer {name!r}: its process ended by signal 9 (Killed, as when memory runs out),"
        " without a result"
    ),
    "os.closerange(0, 100)": (
        "localizer {name!r}: its process ended with exit status 1, without a result"
    ),
    "raise KeyboardInterrupt('boom')": (
        "localizer {name!r}: KeyboardInterrupt: boom (made.py:15); run `kgbench check-localizer"
        " {name}`"
    ),
    "sys.exit(0)": "localizer {name!r} does not take these parameters: SystemExit: 0",
    "raise GeneratorExit": "localizer {name!r} does not take these parameters: GeneratorExit",
    "os.fork() or time.sleep(60); os._exit(0)": (
        "localizer {name!r}: its process ended with exit status 0, without a result"
    ),
}
"""What a localizer does, and the line that says so; the last leaves a process behind that holds its
streams open.
"""


def made(folder: Path, body: str) -> str:
    """A localizer that does something when it is made, and that needs no torch; gives what to name
    it by.
    """
    (folder / "made.py").write_text(MADE.format(body))
    return f"{folder / 'made.py'}:Made"


@pytest.mark.sampled(5)
@pytest.mark.posix
@pytest.mark.parametrize("body", ENDS)
def test_however_it_ends_is_a_line(tmp_path: Path, body: str) -> None:
    """A process that ends without a result is an error that names the localizer and how it ended,
    never a success.
    """
    name = made(tmp_path, body)
    with pytest.raises(InputError) as caught:
        declaration(name)
    assert str(caught.value) == ENDS[body].format(name=name)


def test_what_it_leaves_does_not_keep_its_process(tmp_path: Path) -> None:
    """A thread that never ends does not delay the result."""
    found = declaration(made(tmp_path, "threading.Thread(target=time.sleep, args=(1e6,)).start()"))
    assert (found.name, found.kind, found.parameters) == ("made", "intervention", {"window": 3})


def test_errors_and_warnings_keep_their_kind(tmp_path: Path) -> None:
    """An error of ours is of its class, as in one process; a warning is given on."""
    name = made(tmp_path, "import warnings; warnings.warn('careful')")
    with pytest.raises(UnknownNameError, match="Did you mean 'window'"):
        declaration(name, windwo="3")
    with pytest.warns(UserWarning, match="careful"):
        declaration(name)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b"\x80\x05N.\n", "Invalid JSON"),
        (b'{"result": {"name": "made", "kind": 3, "parameters": {}}}\n', "a valid string"),
        (b'{"result": 3}\n', "an object"),
        (b'{"call": "os.system"}\n', "not permitted"),
    ],
)
def test_what_a_process_gives_is_values_only(tmp_path: Path, line: bytes, told: str) -> None:
    """A line that is not the JSON of a message is refused, by whichever descriptor it comes."""
    body = (
        f"for place in range(3, 20):\n            try: os.write(place, {line!r})\n           "
        " except OSError: pass"
    )
    name = made(tmp_path, body)
    with pytest.raises(
        InputError, match=r"its process sent what is no message of kgbench"
    ) as caught:
        declaration(name)
    assert told in str(caught.value) and "\n" not in str(caught.value)


@dataclass(frozen=True)
class Computed:
    """What a process may give."""

    prompts: tuple[tuple[str, str], ...]
    numbers: tuple[float, ...]
    flags: dict[str, bool]
    mean: Estimate


def test_what_a_process_gives_is_what_it_computed() -> None:
    """Values and estimates come out of JSON to the bit, infinities included."""
    numbers = (0.1, 1 / 3, float("inf"), -float("inf"))
    mean = Estimate(1 / 3, 0.1 + 0.2, 2 / 3, 7)
    whole = Computed((("a/1", "qa"), ("a/2", "qa")), numbers, {"first": True}, mean)

    def computed() -> Computed:
        return whole

    _, message = _formats(computed, 0)
    line = message.model_construct(result=whole).model_dump_json(exclude_unset=True)
    assert message.model_validate_json(line).result == whole


def waiting(folder: Path, file: str) -> subprocess.Popen[bytes]:
    """A process that has made the localizer, which hangs once a file is there."""
    code = (
        "from kgbench.runner.third_party_process import method_of; from kgbench.runner import Spec, check;"
        " method_of(check(Spec(model='tiny-gpt2', localizer='made.py:Made')))"
    )
    parent = forks.Popen(
        [sys.executable, "-c", code],
        cwd=folder,
        stderr=subprocess.PIPE,
        preexec_fn=forks.hears_interrupts,
        start_new_session=True,
    )
    while not (folder / file).exists():
        assert parent.poll() is None
        time.sleep(0.05)
    return parent


@pytest.mark.sampled(1)
@pytest.mark.linux
@pytest.mark.parametrize("interrupted", ["parent", "both", "killed"])
def test_an_interruption_ends_both_processes(tmp_path: Path, interrupted: str) -> None:
    """A localizer that hangs is ended with the command, whether a terminal interrupts both or the
    parent alone ends.
    """
    wait = "open('there', 'w').write(str(os.getpid())); os.rename('there', 'pid'); time.sleep(1e6)"
    made(tmp_path, wait)
    parent = waiting(tmp_path, "pid")
    child = int((tmp_path / "pid").read_text())
    if interrupted == "both":
        os.killpg(parent.pid, signal.SIGINT)
    else:
        parent.send_signal(signal.SIGINT if interrupted == "parent" else signal.SIGKILL)
    _, told = parent.communicate()
    assert parent.returncode in (-signal.SIGINT, -signal.SIGKILL)
    while Path(f"/proc/{child}").exists():
        time.sleep(0.05)
    assert told.count(b"Traceback") == (interrupted != "killed")


SPOILED = """\
import torch
import kgbench.runner.measure as measure
from kgbench.localizers.dynamic_graft import DynamicGraft as Base

seen = []


class Spoiling(Base):
    name = "spoiling"
    about = "leaves something changed"

    def treat(self, pair, prompts, sites):
        model = pair.recipient
        if not seen:
            seen.append(model)
            {}
        return super().treat(pair, prompts, sites)
"""

HOOK = "model.register_forward_hook(lambda module, given, out: setattr(out, 'logits', -out.logits))"


def test_a_record_does_not_depend_on_localizers_before(tmp_path: Path) -> None:
    """What somebody else's localizer leaves behind is refused, and the next record is row for row
    what it is by itself; what can be left is a law of the contract.
    """
    spec = Spec(model="tiny-gemma", prompts=("headline",), limit=2)
    alone = run_job(spec, Settings(output_dir=tmp_path / "alone"))
    pairs, settings = Pairs(), Settings(output_dir=tmp_path / "after")
    name = loaded(tmp_path, SPOILED.format(HOOK))
    with pytest.raises(InputError, match="Spoiling', or what was run with it, changed "):
        compute_job(check(replace(spec, localizer=name)), settings, pairs=pairs)
    after = run_job(spec, settings, pairs=pairs)
    assert [stored.path for stored in RecordStore(settings.output_dir).scan()] == [after.path]
    assert read_record(after.path).facts().equals(read_record(alone.path).facts())


HONEST = "pass"
BESIDE = {
    "treat": SPOILED.format(HOOK),
    "weights": SPOILED.format("model.get_input_embeddings().weight.data[-1].add_(1.0)"),
    "import": (
        SPOILED.format(HONEST)
        + "\n\n"
        + "measure.score_labels = lambda *of, was=measure.score_labels: was(*of)\n"
    ),
}
"""Code of a localizer that leaves something changed: in a forward's way, in weights that few
forwards read, or when it is loaded.
"""
CHANGED = {
    "treat": "the hooks of recipient",
    "weights": "the weights of recipient",
    "import": "functions of kgbench or torch",
}


def loaded(folder: Path, text: str) -> str:
    """A localizer's file; gives what to name it by."""
    (folder / "spoiling.py").write_text(text)
    return f"{folder / 'spoiling.py'}:Spoiling"


def said(name: str, spoiler: str) -> str:
    return f"localizer {name!r}, or what was run with it, changed {CHANGED[spoiler]}"


@pytest.fixture
def restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a localizer patches in this process is put back."""
    monkeypatch.setattr(measure, "score_labels", vars(measure)["score_labels"])


@pytest.mark.crossed
@pytest.mark.parametrize("kind", ["loglikelihood", "generate_until"])
@pytest.mark.parametrize("spoiler", [*BESIDE, ""])
def test_a_model_of_lm_eval_refuses_to_answer_once_spoilt(
    tmp_path: Path, spoiler: str, kind: str, restored: None
) -> None:
    """No answer is given, then or later; with an honest one there are answers."""
    name = loaded(tmp_path, BESIDE.get(spoiler, SPOILED.format(HONEST)))
    lm = KgbenchLM(pair="tiny-gpt2", localizer=name, graft="LT", device="cpu")
    arguments = (
        "The film",
        " stars" if kind == "loglikelihood" else {"until": [], "max_gen_toks": 1},
    )
    request = Instance(
        request_type=kind, doc={}, arguments=arguments, idx=0, metadata=("plain", 0, 1)
    )
    for _ in range(2):
        if spoiler:
            with pytest.raises(InputError) as caught:
                getattr(lm, kind)([request], disable_tqdm=True)
            assert said(name, spoiler) in str(caught.value)
        else:
            assert len(getattr(lm, kind)([request], disable_tqdm=True)) == 1


def plugin_options(localizer: str, prompts: str = "headline") -> list[str]:
    options = {"model": "tiny-gpt2", "limit": "2", "prompt": prompts, "localizer": localizer}
    return [f"--kgbench-{name}={value}" for name, value in options.items()]


TESTS = """
def test_before(model_pair): pass
def test_use(localizer, model_pair, prompts):
    from kgbench.sites import parse_graft
    localizer.treat(model_pair, prompts[:1], parse_graft("LT"))
def test_after(): pass
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("spoiler", [*BESIDE, ""])
def test_the_fixture_fails_the_test_that_spoils(tmp_path: Path, spoiler: str) -> None:
    """The test fails, and no later one runs; changed weights that no short forward reads fail the
    session at its end.
    """
    name = loaded(tmp_path, BESIDE.get(spoiler, SPOILED.format(HONEST)))
    write(tmp_path, test_mine=TESTS)
    done = session(tmp_path, *plugin_options(name))
    found = {"": {"passed": 3}, "weights": {"passed": 3, "error": 1}}.get(
        spoiler, {"passed": 1, "failed": 1}
    )
    assert (done.returncode, counts(done)) == (int(bool(spoiler)), found), done.stdout
    assert not spoiler or said(name, spoiler) in done.stdout


@pytest.mark.nightly
@pytest.mark.parametrize("spoiler", ["treat", ""])
def test_the_benchmark_fails_where_a_localizer_spoils(tmp_path: Path, spoiler: str) -> None:
    """The test that timed it fails, and nothing else is timed."""
    name = loaded(tmp_path, BESIDE.get(spoiler, SPOILED.format(HONEST)))
    times = ("--benchmark-min-rounds", "2", "--benchmark-disable-gc")
    test = "def test_{0}(time_localizer): time_localizer('{0}')\n"
    write(tmp_path, test_mine=test.format("headline") + test.format("qa"))
    done = session(tmp_path, *plugin_options(name, "headline,qa"), *times, plugins=())
    assert done.returncode == int(bool(spoiler)), done.stdout
    assert (counts(done).get("failed", 0) == 1) is bool(spoiler)
    assert not spoiler or said(name, spoiler) in done.stdout
