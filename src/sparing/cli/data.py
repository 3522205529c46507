"""`sparing data`: corpora, fetched, verified, tokenised."""

import json
from typing import Annotated, Any

import typer

from sparing.cli.options import Json, Source, show
from sparing.data.corpora import CORPORA, check_source, read_splits
from sparing.data.corpora import get as get_corpus
from sparing.data.tokens import DataConfig, Tokens
from sparing.data.tokens import prepare as prepare_tokens
from sparing.data.vocab import Kind
from sparing.errors import unknown

app = typer.Typer(help="Corpora: list, get, prepare.", no_args_is_help=True)


@app.command("list")
def list_corpora(as_json: Json = False) -> None:
    """The corpora this program knows."""
    known = {name: corpus.description for name, corpus in CORPORA.items()}
    if as_json:
        typer.echo(json.dumps(known))
    else:
        show(known, as_json=False)


@app.command()
def get(
    name: Annotated[str, typer.Argument(metavar="CORPUS", help="See `sparing data list`.")],
    source: Source = None,
    as_json: Json = False,
) -> None:
    """Fetch a corpus (or take a local copy), verify it, keep it."""
    if name not in CORPORA:
        raise unknown("corpus", name, CORPORA)
    if source is not None:
        check_source(name, source)
    folder = get_corpus(name, source)
    sizes = {split: len(text) for split, text in read_splits(name).items()}
    show({"corpus": name, "folder": str(folder), "bytes": sizes}, as_json=as_json)


@app.command()
def prepare(
    corpus: Annotated[
        str, typer.Argument(metavar="CORPUS", help="A name, or a text file or folder of yours.")
    ],
    vocab: Annotated[Kind, typer.Option(help="What one token is.")] = "bytes",
    vocab_size: Annotated[int | None, typer.Option(help="How many pieces to learn.")] = None,
    newlines: Annotated[bool, typer.Option(help="Keep line ends.")] = True,
    source: Source = None,
    as_json: Json = False,
) -> None:
    """Tokenise a corpus once; `train` does it by itself where needed."""
    config = DataConfig(corpus=corpus, vocab=vocab, vocab_size=vocab_size, newlines=newlines)
    show(_report(prepare_tokens(config, source)), as_json=as_json)


def _report(tokens: Tokens) -> dict[str, Any]:
    splits = {name: tokens.split(name) for name in ("train", "valid", "test")}
    return {
        "folder": str(tokens.folder),
        "vocabulary": tokens.vocab.size,
        "tokens": {name: int(split.ids.size) for name, split in splits.items()},
        "bytes": {name: split.size_bytes for name, split in splits.items()},
    }
