"""Many ``gateway`` commands in one process, as imports cost more than they do.

``python -m tests.support.many_commands '[[WORD, …], …]'`` prints what came of each, and which heavy packages are
imported at the end.
"""

import json
import sys

from click.testing import CliRunner

from gateway.cli.main import main

HEAVY = {"sqlalchemy", "aiohttp", "rich.console"}


def run(commands: list[list[str]]) -> None:
    done = []
    for words in commands:
        result = CliRunner().invoke(main, words)
        done.append([result.exit_code, result.stdout, result.stderr])
    print(json.dumps({"done": done, "heavy": sorted(HEAVY & set(sys.modules))}))  # noqa: T201 - its answer


if __name__ == "__main__":
    run(json.loads(sys.argv[1]))
