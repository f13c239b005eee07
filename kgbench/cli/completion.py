"""`kgbench completion`: the script that teaches a shell our names."""

from __future__ import annotations

import click


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]), metavar="bash|zsh|fish")
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    \b
    bash: kgbench completion bash >> ~/.bashrc
    zsh:  kgbench completion zsh >> ~/.zshrc
    fish: kgbench completion fish > ~/.config/fish/completions/kgbench.fish
    """  # noqa: D301 (click reads the character, not its escape)
    from click.shell_completion import get_completion_class

    script = get_completion_class(shell)
    assert script is not None
    click.echo(script(ctx.find_root().command, {}, "kgbench", "_KGBENCH_COMPLETE").source())
