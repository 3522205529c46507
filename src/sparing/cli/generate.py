"""`sparing generate`: generate text with a trained run."""

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from sparing.cli.complete import complete_runs
from sparing.cli.interactive import converse, print_completion
from sparing.cli.options import RUN, CheckpointName, Device, Json
from sparing.data.text import encode_text
from sparing.errors import UserError
from sparing.generate.compiled import is_compiled
from sparing.generate.text import Completion, complete
from sparing.inputs import read_input
from sparing.lm import LM, GenerationOptions, generation_config, open_lm
from sparing.runs.bundled import OPENING, run_or_bundled
from sparing.runs.folder import pick_hardware
from sparing.terminal import print_json, print_line, print_text, styled
from sparing.units import pluralize

Prompts = Annotated[
    list[str] | None, typer.Option("--prompt", help="Text to continue; repeat it for a batch.")
]
PromptFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Read the prompt from a file, or - for standard input."),
]
Interactive = Annotated[
    bool, typer.Option("--interactive", "-i", help="Take turns with the model, line by line.")
]
Compile = Annotated[
    bool, typer.Option("--compile", help="Generate with compiled code: fast, on a CPU.")
]


def generate(
    path: Annotated[
        Path | None, typer.Argument(metavar="RUN", help=RUN, autocompletion=complete_runs)
    ] = None,
    prompt: Prompts = None,
    prompt_file: PromptFile = None,
    interactive: Interactive = False,
    length: Annotated[int, typer.Option(help="Tokens to generate.")] = 500,
    temperature: Annotated[
        float, typer.Option(help="0 always takes the most probable token.")
    ] = 1.0,
    top_k: Annotated[int, typer.Option(help="Keep the K most probable tokens; 0 is off.")] = 0,
    top_p: Annotated[
        float, typer.Option(help="Keep the most probable tokens up to this total probability.")
    ] = 1.0,
    min_p: Annotated[
        float, typer.Option(help="Drop tokens below this fraction of the best.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same text.")] = 0,
    stop: Annotated[list[str] | None, typer.Option(help="Stop before this text.")] = None,
    checkpoint: CheckpointName = None,
    target: Device = "auto",
    compiled: Compile = False,
    as_json: Json = False,
) -> None:
    """Generate text after a prompt."""
    if interactive:
        _check_interactive(prompt or [], prompt_file, as_json=as_json)
    prompts = _prompts(prompt or [], prompt_file)
    options = GenerationOptions(
        length=length,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        stop=stop or (),
    )
    # Refuses values that make no sense before the model is loaded.
    generation_config(**options)
    folder = run_or_bundled(path)
    lm = open_lm(folder, pick_hardware(folder, target), checkpoint)
    if compiled:
        _compile(lm)
    if interactive:
        converse(lm, options, first=prompts[0] if prompts else None)
        return
    opened = not prompts and path is None
    prompts = prompts or [OPENING if opened else b""]
    if len(prompts) == 1 and not as_json:
        _stream(lm, prompts[0], options, opened=opened)
        return
    _complete(lm, prompts, options, as_json=as_json)


def _compile(lm: LM) -> None:
    if not is_compiled(lm.model):
        print_line(
            "Compiling this model for this machine. It takes minutes, but only once.", err=True
        )
    lm.compile()


def _check_interactive(given: list[str], path: Path | None, *, as_json: bool) -> None:
    if as_json:
        raise UserError("--interactive prints text as it is generated; leave --json out")
    if len(given) > 1:
        raise UserError(f"--interactive starts from one prompt, not from {len(given)}")
    if str(path) in ("-", "/dev/stdin"):
        raise UserError("--interactive reads standard input itself; leave --prompt-file out")


def _prompts(given: list[str], path: Path | None) -> list[bytes]:
    if given and path is not None:
        raise UserError("give --prompt or --prompt-file, not both")
    if path is None:
        return [encode_text(text) for text in given]
    return [read_input(path)]


def _stream(lm: LM, prompt: bytes, options: GenerationOptions, *, opened: bool) -> None:
    # Refuses a prompt that cannot be encoded before anything is printed.
    lm.vocab.encode(prompt)
    # Markers go to standard error, so that the text itself can be piped.
    marked = opened or (sys.stdout.isatty() and not styled())
    if marked:
        what = "no --prompt given; a built-in one" if opened else "prompt"
        print_line(f"--- {what} ---", err=True)
    print_text(prompt.decode("utf-8", errors="replace"), strong=True)
    if marked:
        print_line("\n--- generated ---", err=True)
    read = lm.state(prompt)
    started_at = time.perf_counter()
    written = print_completion(lm, read, options)
    print_text("\n")
    _print_speed(len(written.text), time.perf_counter() - started_at)


def _complete(lm: LM, prompts: list[bytes], options: GenerationOptions, *, as_json: bool) -> None:
    """Continue several prompts at once and print each result when all are done."""
    started_at = time.perf_counter()
    done = complete(lm.model, lm.vocab, prompts, generation_config(**options), lm.hardware)
    if as_json:
        print_json({"completions": [_record(each) for each in done]})
        return
    for each in done:
        print_text(each.prompt.decode("utf-8", errors="replace"), strong=True)
        print_text(f"{each.text}\n{'-' * 40}\n")
    # A byte that is not UTF-8 has become a character of three.
    size = sum(len(each.text.replace("\N{REPLACEMENT CHARACTER}", "?").encode()) for each in done)
    _print_speed(size, time.perf_counter() - started_at)


def _print_speed(size: int, elapsed_s: float) -> None:
    """Print the speed, on a terminal only."""
    if sys.stdout.isatty():
        speed = size / max(elapsed_s, 1e-9)
        count = pluralize(size, "byte")
        print_line(f"({count} in {elapsed_s:.1f} s, {speed:,.0f} bytes/s)", err=True)


def _record(done: Completion) -> dict[str, object]:
    return {
        "prompt": done.prompt.decode("utf-8", errors="replace"),
        "text": done.text,
        "tokens": done.tokens,
        "finish": done.finish,
        "elapsed_s": done.elapsed_s,
    }
