"""What `interop_tools.py` and `interop_witness.py` have in common: each shows
something to tools that are not this project's, and prints what they said.

This module knows no tool and imports the standard library alone, since each of the
two runs in an environment of its own.
"""

from __future__ import annotations

import argparse
import json
import sys


class Refused(Exception):
    """What a tool said against what it was shown."""


def tell(parser: argparse.ArgumentParser, *refusals: type[Exception]) -> int:
    """Calls `ask` of the parsed arguments with them, and prints the answer as one JSON
    object. Returns the exit code: 0 the tool took it; 1 the tool refused it, as
    `Refused` or one of the other exceptions says; 2 it could not run.
    """
    arguments = parser.parse_args()
    try:
        print(json.dumps(arguments.ask(arguments)))
    except (Refused, *refusals) as refused:
        print(json.dumps({"refused": str(refused)}))
        return 1
    except (OSError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0
