"""Write the YAML files of `tasks/`: one per shipped data set, prompt and form. Run with `make tasks`."""

from __future__ import annotations

from pathlib import Path

from kgbench.harness.catalogue import FORMS, Entry, shipped

FOLDER = Path(__file__).parent.parent / "tasks"

TEMPLATE = """\
# Written by tests/write_tasks.py.
include: ../_{form}.yaml
task: {name}
tag: [{tags}]
dataset_kwargs:
  kgbench_dataset: {dataset}
  kgbench_prompt: {prompt}
"""


def files() -> dict[str, str]:
    """By path in the folder, the text of each file."""
    return {
        f"{entry.dataset}/{entry.prompt}{FORMS[entry.form]}.yaml": _text(entry)
        for entry in shipped()
    }


def _text(entry: Entry) -> str:
    return TEMPLATE.format(
        form=entry.form,
        name=entry.name,
        tags=", ".join(entry.tags),
        dataset=entry.dataset,
        prompt=entry.prompt,
    )


def main() -> None:
    """Write what there is to be, and take away what is no longer."""
    wanted = files()
    for stale in FOLDER.glob("*/*.yaml"):
        if str(stale.relative_to(FOLDER)) not in wanted:
            stale.unlink()
    for name, text in wanted.items():
        path = FOLDER / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    print(f"{len(wanted)} tasks in {FOLDER}")


if __name__ == "__main__":
    main()
