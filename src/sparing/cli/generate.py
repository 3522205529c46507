"""`sparing generate`: generate text with a trained run."""

from pathlib import Path
from typing import Annotated

import typer

from sparing import device
from sparing.cli.options import CheckpointName, Device, Json
from sparing.data.text import encode_text
from sparing.errors import UserError
from sparing.generate.decode import GenerationConfig
from sparing.generate.sampling import SamplingConfig
from sparing.generate.text import complete, read_text, stream_text
from sparing.inputs import read_input
from sparing.runs.bundled import OPENING, run_or_bundled
from sparing.runs.folder import load_model
from sparing.terminal import print_json, print_line, print_text


def generate(
    path: Annotated[
        Path | None,
        typer.Argument(metavar="RUN", help="Default: the model that comes with the package."),
    ] = None,
    prompt: Annotated[
        list[str] | None, typer.Option(help="Text to continue; several make a batch.")
    ] = None,
    prompt_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Read the prompt from a file, or - for standard input."),
    ] = None,
    length: Annotated[int, typer.Option(help="Tokens to generate.")] = 500,
    temperature: Annotated[
        float, typer.Option(help="0 always takes the most probable token.")
    ] = 1.0,
    top_k: Annotated[int, typer.Option(help="Keep the K most probable tokens; 0 is off.")] = 0,
    top_p: Annotated[
        float, typer.Option(help="Keep the most probable tokens up to this share.")
    ] = 1.0,
    min_p: Annotated[
        float, typer.Option(help="Drop tokens below this fraction of the best.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="The same seed gives the same text.")] = 0,
    stop: Annotated[list[str] | None, typer.Option(help="Stop before this text.")] = None,
    checkpoint: CheckpointName = None,
    target: Device = "auto",
    as_json: Json = False,
) -> None:
    """Generate text after a prompt."""
    prompts = _prompts(prompt or [], prompt_file)
    opened = not prompts and path is None
    prompts = prompts or [OPENING if opened else b""]
    sampling = SamplingConfig(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed
    )
    config = GenerationConfig(length=length, stop=tuple(stop or ()), sampling=sampling)
    folder, hardware = run_or_bundled(path), device.pick(target, "float32")
    model, vocab = load_model(folder, hardware, checkpoint), folder.vocab()
    if len(prompts) == 1 and not as_json:
        # Refuses a prompt that cannot be encoded before anything is printed.
        vocab.encode(prompts[0])
        _print_prompt(prompts[0], opened=opened)
        read = read_text(model, vocab, prompts[0], hardware)
        for piece in stream_text(model, vocab, read, config, hardware):
            print_text(piece)
        print_text("\n")
        return
    for done in complete(model, vocab, prompts, config, hardware):
        shown = done.prompt.decode("utf-8", errors="replace")
        if as_json:
            record = {
                "prompt": shown,
                "text": done.text,
                "tokens": done.tokens,
                "finish": done.finish,
                "elapsed_s": done.elapsed_s,
            }
            print_json(record)
        else:
            print_text(f"{shown}{done.text}\n{'-' * 40}\n")


def _prompts(given: list[str], path: Path | None) -> list[bytes]:
    if given and path is not None:
        raise UserError("give --prompt or --prompt-file, not both")
    if path is None:
        return [encode_text(text) for text in given]
    return [read_input(path)]


def _print_prompt(prompt: bytes, *, opened: bool) -> None:
    """Print the prompt; one that the user did not give is set apart from what is generated."""
    # To standard error, so that the text itself can be piped.
    if opened:
        print_line("--- opening, as no --prompt is given ---", err=True)
    print_text(prompt.decode("utf-8", errors="replace"))
    if opened:
        print_line("\n--- generated ---", err=True)
