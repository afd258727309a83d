"""Files that are whole, in a folder that one run has at a time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rltok_rl.training.atomic_files import claim_folder, replace_text

HOLD = "import sys, time; from pathlib import Path; from rltok_rl.training.atomic_files import claim_folder\n"
HOLD += "with claim_folder(Path(sys.argv[1])):\n    print('mine', flush=True); time.sleep(60)"


def test_a_folder_is_for_one_process_until_that_is_gone(tmp_path):
    """However it ends: SIGKILL leaves nothing that would have to be cleaned up."""
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "mine\n"
        with pytest.raises(BlockingIOError, match="is in use by another run"), claim_folder(tmp_path):
            pass
        os.kill(other.pid, signal.SIGKILL)
        other.wait()
    for _ in range(2):
        with claim_folder(tmp_path):
            pass


def test_a_file_that_cannot_be_written_anew_stays_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "config.yaml"
    replace_text(path, "old")

    def write_some(self: Path, text: str) -> None:
        with self.open("w") as file:
            file.write(text[:2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", write_some)
    with pytest.raises(OSError, match="No space left"):
        replace_text(path, "new and longer")
    assert path.read_text() == "old"
