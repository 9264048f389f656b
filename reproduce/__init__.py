"""The experiments of the paper by one command: python -m reproduce plan | run | status | report, docs/reproduce.md."""

# What this package shares with the scripts, imported here and nowhere else
from madaac_utils.files import EXPERTS, ROOT, UserError, exit_on_user_error, read_json, writing

__all__ = ["EXPERTS", "ROOT", "UserError", "exit_on_user_error", "read_json", "writing"]
