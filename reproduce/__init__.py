"""The experiments of the paper by one command: python -m reproduce plan | run | status | report, docs/reproduce.md."""

from pathlib import Path

# What this package shares with the scripts, imported here and nowhere else.
from env_utils import UserError, exit_on_user_error, writing
from env_utils import read_json_object as read_json

__all__ = ["EXPERTS", "ROOT", "UserError", "exit_on_user_error", "read_json", "writing"]

ROOT = Path(__file__).resolve().parent.parent
EXPERTS = ROOT / "experts"
