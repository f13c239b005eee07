"""`kgbench explore`: a prompt's map of effects, on a page or a local server."""

from __future__ import annotations

from typing import Any

import click

from kgbench.cli.options import File, check_options, cli_command, settings_of, spec_of
from kgbench.cli.output import Output, until_interrupted, write_file
from kgbench.errors import InputError
from kgbench.runner.spec import PAIR


@cli_command(
    *("answer", "subject", *PAIR, "dtype", "device", "device_map"),
    *("output", "served", "port", "as_json"),
    served={"flag": "--serve"},
    port={"type": click.IntRange(0, 65535)},
)
def explore_command(
    text: str,
    *,
    answer: str | None,
    subject: str | None,
    output: File | None,
    served: bool,
    port: int = 0,
    as_json: bool,
    **options: Any,
) -> Output:
    """Show which tokens and components of one prompt bring the finetuned answer.

    Each token's effect when it alone has the finetuned weights is exact; those of
    single components are first-order estimates, and exact for what is chosen on a
    served page.

    \b
    kgbench explore "Alan Collins stars in a movie alongside" --model tiny-gemma -o page.html
    kgbench explore "Alan Collins stars in a movie alongside" --model tiny-gemma --serve

    Args:
        text (PROMPT): The prompt.
        answer (TEXT): Its continuation.  [default: the donor's likeliest token]
        subject (TEXT): Words of the prompt that are the first entity.
        output (FILE.html): Write a page, which needs no Python.
        served: Serve it on this machine, for any prompt.
        port: Of --serve.  [default: a free one]
        as_json: One JSON object on stdout.
        **options: Fields of the pair and of how it is computed.
    """  # noqa: D301 (click reads the character, not its escape)
    from kgbench.analyses.explorer import Reader, page_of, serve
    from kgbench.runner import Pairs
    from kgbench.runner.sources import Sources, check_different

    if sum((output is not None, served, as_json)) != 1:
        raise InputError("give one of --output FILE.html, --serve and --json")
    check_options(options, options["model"] is not None)
    spec = spec_of(options)
    sources = Sources.of(spec)
    check_different(sources)
    pair = Pairs().load(sources, settings_of(options), spec.dtype)
    reader = Reader(pair)
    payload = reader.read(text, answer, subject)
    if output is not None:
        write_file(output, page_of(payload).encode())
    if served:
        until_interrupted(serve(reader, payload, port))
    return Output([f"page     {output}"] if output else [], payload)
