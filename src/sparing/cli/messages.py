"""Help and complaints in our words rather than in the library's."""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from sparing.errors import unknown

VALUES = {"int": "N", "float": "X", "str": "TEXT", "path": "PATH", "Path": "PATH"}
"""How help names the value of an option, by the library's name for its type."""
TYPE = re.compile(r"<(?:list\[)?((?:int|float|str|path|Path)(?:,\w+)*)\]?>(?:\.\.\.)?")

SENTENCES = (
    (r"Invalid value for '(\S+)': .*valid integer.*", r"\1 takes a whole number"),
    (r"Invalid value for '(\S+)': .*valid number.*", r"\1 takes a number"),
    (r"Invalid value for '(\S+)': .*valid float.*", r"\1 takes a number"),
    (r"No such option:? '?([^\s']+?)'?\.?", r"unknown option '\1'; --help lists them"),
    (r"Missing (?:argument|option) '(.+?)'.*", r"\1 is missing; --help says what it is"),
    (r"Option '(\S+)' requires an argument\.", r"\1 needs a value"),
    (r"Option '(\S+)' requires (\d+) arguments\.", r"\1 needs \2 values"),
    (r"Option '(\S+)' does not take a value\.", r"\1 takes no value"),
    (r"Got unexpected extra arguments?(?:\(s\))? \((.*)\)", r"too many words: \1"),
)  # fmt: skip
CHOICE = re.compile(r"Invalid value for '(\S+)': .*'(.*)' is not one of (.+?)\.?")
OPTION = re.compile(r"No such option: (\S+).*(?:Did you mean|Possible options:) (.+?)[?)]")
COMMAND = re.compile(r"No such command '(.+?)'\..*")


def reworded(complaint: str, commands: Iterable[str]) -> str:
    """The library's complaint as we would say it; one we do not know stays as it is."""
    if found := CHOICE.fullmatch(complaint):
        return str(unknown(found[1], found[2], re.findall(r"'(.+?)'", found[3])))
    if found := OPTION.fullmatch(complaint):
        return str(unknown("option", found[1], found[2].split(", ")))
    if found := COMMAND.fullmatch(complaint):
        return str(unknown("command", found[1], commands))
    for pattern, ours in SENTENCES:
        if found := re.fullmatch(pattern, complaint):
            return found.expand(ours)
    return complaint


def name_values(command: Any) -> None:
    """Let help say N or TEXT where it would name a type of Python's."""
    for each in _all(command):
        for parameter in each.params:
            parameter.get_help_record = partial(
                _record, parameter.get_help_record, parameter.param_type_name == "argument"
            )


def _all(command: Any) -> Iterator[Any]:
    yield command
    for below in getattr(command, "commands", {}).values():
        yield from _all(below)


def _record(
    record: Callable[[Any], tuple[str, str] | None], argument: bool, context: Any
) -> tuple[str, str] | None:
    """A line of help; an argument goes by its name alone."""
    line = record(context)
    if line is None:
        return None
    named = TYPE.sub(lambda found: " ".join(VALUES[word] for word in found[1].split(",")), line[0])
    return TYPE.sub("", line[0]).strip() if argument else named, line[1]
