"""The arguments that all training scripts have in common. This module imports nothing, so that --help is fast."""

from dataclasses import dataclass


@dataclass
class ExperimentArgs:
    """Arguments that all training scripts have in common."""

    exp_name: str = ""
    """name of the experiment, part of the run folder's name; default: the name of the script"""
    seed: int = 1
    """seed of all random numbers; the same seed gives the same policy on the same machine"""
    torch_threads: int = 1
    """threads that torch may use; 0 leaves the choice to torch"""
    cuda: bool = False
    """train on the GPU"""
    track: bool = False
    """also log to Weights & Biases (needs `pip install wandb`)"""
    capture_video: bool = False
    """write a short video of the learned policy into the run folder"""
    runs: str = "runs"
    """where run folders go"""
    resume: str = ""
    """a run folder to continue; its other arguments come from there, and only a larger budget may be new"""
    resume_changed: bool = False
    """continue the run although the script has changed since"""
    save_every: int = 300
    """seconds between checkpoints, at least; 0: one after every iteration"""
    log_every: int = 10_000
    """environment steps between TensorBoard points; a short run logs more often, to have at least 50 points"""
    eval_episodes: int = 500
    """fresh episodes of the evaluation at the end"""
