"""The experiments of the paper by one command: python -m reproduce plan | run | status | report, docs/reproduce.md."""
