"""Help texts and usage errors in plain words, in place of the library's own."""

import copy
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from sparing.errors import unknown_name

VALUES = {
    "int": "N",
    "float": "X",
    "int range": "N",
    "float range": "X",
    "str": "TEXT",
    "path": "PATH",
    "Path": "PATH",
}
"""Names of option values in help texts, by the library's name of their type."""
TYPE = re.compile(
    r"<(?:list\[)?((?:int range|float range|int|float|str|path|Path)(?:,\w+)*)\]?>(?:\.\.\.)?"
)

SENTENCES = (
    (r"Invalid value for '(\S+)': .*valid integer.*", r"\1 takes a whole number"),
    (r"Invalid value for '(\S+)': .*valid number.*", r"\1 takes a number"),
    (r"Invalid value for '(\S+)': .*valid float.*", r"\1 takes a number"),
    (r"Invalid value for '(\S+)': .*greater than or equal to (\S+)", r"\1 must be at least \2"),
    (r"No such option:? '?([^\s']+?)'?\.?", r"unknown option '\1'; see --help"),
    (r"Missing (?:argument|option) '(.+?)'.*", r"\1 is missing; see --help"),
    (r"Option '(\S+)' requires an argument\.", r"\1 needs a value"),
    (r"Option '(\S+)' requires (\d+) arguments\.", r"\1 needs \2 values"),
    (r"Option '(\S+)' does not take a value\.", r"\1 takes no value"),
    (r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)", r"too many arguments: \1"),
)  # fmt: skip
CHOICE = re.compile(r"Invalid value for '(\S+)': .*'(.*)' is not one of (.+?)\.?")
OPTION = re.compile(r"No such option: (\S+).*(?:Did you mean|Possible options:) (.+?)[?)]")
COMMAND = re.compile(r"No such command '(.*?)'\..*")


def reword(complaint: str, commands: Iterable[str]) -> str:
    """Translate a usage error of the library; one we do not know is returned unchanged."""
    if found := CHOICE.fullmatch(complaint):
        return str(unknown_name(found[1].lower(), found[2], re.findall(r"'(.+?)'", found[3])))
    if found := OPTION.fullmatch(complaint):
        return str(unknown_name("option", found[1], found[2].split(", ")))
    if found := COMMAND.fullmatch(complaint):
        return str(unknown_name("command", found[1], commands))
    for pattern, ours in SENTENCES:
        if found := re.fullmatch(pattern, complaint):
            return found.expand(ours)
    return complaint


def finish_command(command: Any, above: Any) -> Any:
    """Return a command whose help is in our words and which takes --debug like the one above."""
    simplify_value_names(command)
    (debug,) = [copy.copy(option) for option in above.params if option.name == "debug"]
    # `main` looks for it in the command line itself.
    debug.expose_value = False
    for each in _walk_commands(command):
        each.params.append(debug)
    return command


def simplify_value_names(command: Any) -> None:
    """Make help texts say N or TEXT in place of Python types."""
    for each in _walk_commands(command):
        for parameter in each.params:
            parameter.get_help_record = partial(
                _help_record, parameter.get_help_record, parameter.param_type_name == "argument"
            )
            parameter.get_usage_pieces = partial(_usage_pieces, parameter.get_usage_pieces)


def _walk_commands(command: Any) -> Iterator[Any]:
    yield command
    for below in getattr(command, "commands", {}).values():
        yield from _walk_commands(below)


def _usage_pieces(pieces: Callable[[Any], list[str]], context: Any) -> list[str]:
    """Return the names of a usage line, without the library's braces and second dots."""
    named = (re.sub(r"\{(.+?)\}", r"\1", piece) for piece in pieces(context))
    return [re.sub(r"\.{3}(\]?)\.{3}$", r"\1...", name) for name in named]


def _help_record(
    record: Callable[[Any], tuple[str, str] | None], argument: bool, context: Any
) -> tuple[str, str] | None:
    """Return a line of help; the value name of an argument is removed."""
    line = record(context)
    if line is None:
        return None
    named = TYPE.sub(lambda found: " ".join(VALUES[word] for word in found[1].split(",")), line[0])
    return TYPE.sub("", line[0]).strip() if argument else named, line[1]
