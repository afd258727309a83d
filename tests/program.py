"""``python -c`` for :func:`.forked.run_code`: runs the code that is its first argument."""

from __future__ import annotations

import sys

exec(compile(sys.argv[1], "<string>", "exec"), {"__name__": "__main__"})
