"""Process of one rank that runs the scripts it reads, so that several tests share its imports.

Reads lines of JSON, {"script", "folder", "port"}, and answers each with {"output", "error"}.
"""

import contextlib
import io
import json
import os
import sys
import traceback
from pathlib import Path

import torch

from detlite.engine import run  # noqa: F401  (imported before the first script)


def main() -> None:
    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    for line in sys.stdin:
        job = json.loads(line)
        os.chdir(job["folder"])
        os.environ["MASTER_PORT"] = str(job["port"])
        output, error = io.StringIO(), ""
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            try:
                script = Path(job["script"])
                exec(compile(script.read_text(), script, "exec"), {"__name__": "__main__"})
            except BaseException:
                error = traceback.format_exc()
        print(json.dumps({"output": output.getvalue(), "error": error}), file=answers, flush=True)


if __name__ == "__main__":
    main()
