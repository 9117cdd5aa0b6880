"""Every action that is recorded in the audit log has a label in the console, and its subject can be filtered by."""

import ast
import re
from collections.abc import Iterator

from gateway.server.console.labels import ACTIONS, SUBJECTS
from tests.architecture.source import list_nodes, read_modules

_ACTION = re.compile(r"[a-z]+\.[a-z_]+")


def list_actions() -> Iterator[tuple[str, str]]:
    """The actions named in calls that build or record a row of the audit log, with their modules."""
    for module in read_modules():
        for node in list_nodes(module.tree):
            if isinstance(node, ast.Call) and "audit" in ast.unparse(node.func):
                for inner in (each for argument in node.args for each in ast.walk(argument)):
                    if isinstance(inner, ast.Constant) and _ACTION.fullmatch(str(inner.value)):
                        yield str(inner.value), module.where


def test_each_recorded_action_has_a_label_and_a_subject_to_filter_by() -> None:
    actions = dict(list_actions())
    assert len(actions) > 40
    assert {action: where for action, where in actions.items() if action not in ACTIONS} == {}
    assert {action.partition(".")[0] for action in ACTIONS} - SUBJECTS.keys() == set()
