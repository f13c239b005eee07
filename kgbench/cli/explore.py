"""`kgbench explore`: a prompt's map of effects, on a page or a local server."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from kgbench.cli.options import check_pair_options, run_options, settings_of, spec_of
from kgbench.cli.output import echo_json, json_option, write_file
from kgbench.errors import InputError
from kgbench.runner.spec import PAIR

DEFAULTS = ("dtype", "device", "device_map", "stream_donors", "executor", "attention")


@click.command()
@click.argument("text", metavar="PROMPT")
@click.option(
    "--answer", metavar="TEXT", help="Its continuation.  [default: the donor's likeliest token]"
)
@click.option("--subject", metavar="TEXT", help="Words of the prompt that are the first entity.")
@run_options(*PAIR, *DEFAULTS)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE.html",
    help="Write a page, which needs no Python.",
)
@click.option("--serve", "served", is_flag=True, help="Serve it on this machine, for any prompt.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, help="Of --serve.  [default: a free one]"
)
@json_option()
def command(text: str, answer: str | None, subject: str | None, **options: Any) -> None:
    """Show which tokens and components of one prompt bring the finetuned answer.

    Each token's effect when it alone has the finetuned weights is exact; those of
    single components are first-order estimates, and exact for what is chosen on a
    served page.

    \b
    kgbench explore "Alan Collins stars in a movie alongside" --model tiny-gemma -o page.html
    kgbench explore "Alan Collins stars in a movie alongside" --model tiny-gemma --serve
    """  # noqa: D301 (click reads the character, not its escape)
    from kgbench.analyses.explorer import Reader, page_of, serve
    from kgbench.runner import Pairs

    output: Path | None = options["output"]
    if sum((output is not None, options["served"], options["as_json"])) != 1:
        raise InputError("give one of --output FILE.html, --serve and --json")
    check_pair_options(options)
    pair = Pairs().load(spec_of(options), settings_of(options))
    reader = Reader(pair, options["executor"])
    payload = reader.read(text, answer, subject)
    if options["as_json"]:
        echo_json(payload)
    elif output is not None:
        write_file(output, page_of(payload).encode())
        click.echo(f"page     {output}")
    else:
        _serve(serve(reader, payload, options["port"]))


def _serve(server: Any) -> None:
    host, port = server.server_address[:2]
    click.echo(f"http://{host}:{port}/    (Ctrl-C ends it)")
    sys.stdout.flush()
    with server:
        server.serve_forever()
