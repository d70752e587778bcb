"""Runs `omniray up` as long as the parent process lives: a killed test run leaves no coordinator behind.

The first line of standard input has the arguments as JSON, since the options of a store may be secrets, which nobody
should see in a list of processes. Its end asks the coordinator to drain and end, as Ctrl-C does.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
import threading

STDIN = 0


def main() -> None:
    sys.argv = ["omniray", "up", *json.loads(sys.stdin.readline())]
    threading.Thread(target=_end_with_parent, daemon=True).start()
    runpy.run_module("omniray.coordinator.cli.app", run_name="__main__")


def _end_with_parent() -> None:
    # Not through `sys.stdin`: this thread would hold its lock while the interpreter ends.
    while os.read(STDIN, 1):
        pass
    os.kill(os.getpid(), signal.SIGINT)


if __name__ == "__main__":
    main()
