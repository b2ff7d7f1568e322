"""A shell of IPython that runs cells as a notebook does: one JSON text a line comes in, and what has become of it goes out."""

import base64
import json
import sys
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output


def shown(outputs: Any) -> list[dict[str, Any]]:
    """Return what was displayed, with pictures in base64."""
    return [
        {kind: base64.b64encode(data).decode() if isinstance(data, bytes) else data for kind, data in one.data.items()}
        for one in outputs
    ]


def main() -> None:
    shell = InteractiveShell.instance()
    print("ready", flush=True)
    for line in sys.stdin:
        cell = json.loads(line)
        with capture_output(display=True) as captured:
            result = shell.run_cell(cell["source"], store_history=True)
        error = result.error_before_exec or result.error_in_exec
        answer = {
            "value": repr(result.result),
            "error": None if error is None else f"{type(error).__name__}: {error}",
            "cause": None if error is None else str(error.__cause__),
            "stdout": captured.stdout,
            "stderr": captured.stderr,
            "displays": shown(captured.outputs),
        }
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
