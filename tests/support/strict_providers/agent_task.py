"""A model that does a coding task, of five turns or of ten, with whatever tools the agent declares.

It searches and reads a file, edits the file, runs a command, makes two calls at once, and ends with a text. Which turn
it is, it sees by the results of earlier calls in the request, as a real model does.
"""

import json
import re
from collections.abc import Mapping, Sequence

import attrs

from tests.support.providers import Call, Fails, Heard, Provider, Says

BEFORE, AFTER = "the harbour is closed", "the harbour is open"
NOT_FOUND = "Not found"
"""What a provider says at a path that it does not have: the gateway then takes another API format."""
LEARNED = "Range of max_tokens"
"""A refusal that names a model's limit, which the gateway lowers the request to, and later ones at once."""
FINISHED = "The note says that the harbour is open."
_PATH = re.compile(r"Correct the file (/\S+/note\.txt)")
_NAMES = re.compile(r"(?:.*__)?(\w+)")


def write_prompt(path: str) -> str:
    """Return the prompt of the task whose file is at ``path``."""
    return f"Correct the file {path} : the harbour is open now. Show the note at the end."


_PATCH = f"*** Begin Patch\n*** Update File: note.txt\n@@\n-{BEFORE}\n+{AFTER}\n*** End Patch\n"
_COMMANDS: Mapping[str, str] = {
    "search": f"grep -rn '{BEFORE}' .", "search_after": f"grep -rn '{AFTER}' .",
    "read": "cat note.txt", "count": "wc -c note.txt", "list": "ls",
    "edit": f"sed -i 's/{BEFORE}/{AFTER}/' note.txt",
}  # fmt: skip
Task = tuple[tuple[str, ...], ...]
"""The actions of each turn but the last, which is a text."""
TASK: Task = (("search", "find_tools", "read"), ("edit",), ("count",), ("read", "list"))
LONG_TASK: Task = (*TASK[:2], ("count",), ("list",), ("search_after", "list"), ("count",), ("list",), *TASK[2:])


def write_turn(heard: Heard, task: Task = TASK) -> Says:
    """Return the calls of the turn that ``heard`` asks for; a text at the end, or where no task is given."""
    number, calls = _find_calls(heard, task)
    if not calls:
        return Says(FINISHED, thought="Finished.")
    return Says("Let me see." if number > 1 else "", calls=calls, thought=f"Turn {number}.")


def find_turn(heard: Heard, task: Task) -> int | None:
    """Return the number of the turn that ``heard`` asks for, from 1. None where no task is given."""
    return _find_calls(heard, task)[0] or None


def _find_calls(heard: Heard, task: Task) -> tuple[int, tuple[Call, ...]]:
    """Return a turn's number and its calls that have no result yet. 0 where no task is given."""
    path = next(filter(None, map(_PATH.search, heard.messages)), None)
    tools = {match[1]: name for name in heard.tools if (match := _NAMES.fullmatch(name))}
    if path is None or not tools:
        return 0, ()
    done = len(heard.results)
    for number, actions in enumerate(task, 1):
        calls = [call for action in actions if (call := _write_call(action, path[1], tools))]
        if done < len(calls):
            return number, tuple(calls[done:])
        done -= len(calls)
    return len(task) + 1, ()


def _write_call(action: str, path: str, tools: Mapping[str, str]) -> Call | None:
    for name, arguments in _list_ways(action, path):
        if name in tools:
            return Call(tools[name], dict(arguments))
    return None


def _list_ways(action: str, path: str) -> Sequence[tuple[str, Mapping[str, object]]]:
    """Return tools that do ``action`` with their arguments, the best first."""
    if action == "find_tools":
        return [("ToolSearch", {"query": "select:WebFetch,TaskStop"})]
    command = _COMMANDS[action]
    script = f"const done = await tools.exec_command({{cmd: {json.dumps(command)}}}); text(done.output)"
    own: dict[str, list[tuple[str, Mapping[str, object]]]] = {
        "search": [("Grep", {"pattern": BEFORE, "path": path})],
        "search_after": [("Grep", {"pattern": AFTER, "path": path})],
        "read": [("Read", {"file_path": path})],
        "edit": [
            ("Edit", {"file_path": path, "old_string": BEFORE, "new_string": AFTER}),
            ("apply_patch", {"input": _PATCH}),
            ("exec", {"input": f"text(await tools.apply_patch({json.dumps(_PATCH)}))"}),
        ],
    }
    return [
        *own.get(action, ()),
        ("Bash", {"command": command, "description": "Looks at the note"}),
        ("exec", {"input": script}),
        ("exec_command", {"cmd": command}),
        ("shell_command", {"command": command}),
        ("shell", {"command": ["bash", "-c", command]}),
    ]


class Agent(Provider):
    """Answers every request by the task, however many agents ask at once.

    Attributes:
        label: its name in tables.
        quiet: the model does not say what it thinks.
    """

    label = ""

    def give(self) -> Says | Fails:
        return write_turn(self.heard[-1])


@attrs.frozen
class Outcome:
    """What became of a task: the text of the note, what the agent said at last, and what the provider refused."""

    note: str
    text: str
    refusals: tuple[str, ...]

    def find_fault(self) -> str:
        """Return what is not as it must be; empty if all is."""
        if self.refusals:
            return f"the provider refused: {self.refusals[0]}"
        if AFTER not in self.note:
            return f"the file was not edited: {self.note!r}"
        return "" if FINISHED in self.text else f"the last answer: {self.text[-300:]!r}"
