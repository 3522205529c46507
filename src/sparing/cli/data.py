"""`sparing data`: corpora, fetched, verified, tokenised."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from sparing.cli.options import Json, Source, show
from sparing.data.corpora import CORPORA
from sparing.data.tokens import DataConfig, Tokens, prepare as prepare_tokens

app = typer.Typer(help="Corpora: list, get, prepare.", no_args_is_help=True)
