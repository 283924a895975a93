"""What the program runs in tests to look at a model: a process that is forked (see `fork_server`), not started afresh,
since to import torch anew takes seconds. It is given the question on standard input, as the real one is.
"""

import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
import fork_server

code, answer, errors = fork_server.called(
    (), Path.cwd(), os.environ, 300, ("-m", "fp8bench.numerics.model_facts"), sys.stdin.read()
)
sys.stdout.write(answer)
sys.stderr.write(errors)
sys.exit(code)
