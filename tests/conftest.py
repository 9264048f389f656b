"""Settings for all tests: examples of property tests that are the same in every run, and no window needed."""

import os

import torch
from hypothesis import settings

os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")

# Several test processes and a busy machine do not mix with several threads each.
torch.set_num_threads(1)
