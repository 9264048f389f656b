"""Videos of policies."""

from pathlib import Path

import numpy as np

from env_utils import Policy, make_envs
from madaac_utils.files import UserError, writing
from particle_envs import Canvas, ParticleTask


def require_can_draw(envs, flag: str = "--capture-video") -> None:
    """Raise an error before training if no video of the task can be made after it."""
    if not isinstance(envs, ParticleTask):
        raise UserError(f"{flag} can only draw the tasks of particle_envs, not {envs.env_id!r}")


def write_video(path: Path, env_id: str, players: dict[str, Policy], seed: int, episodes: int = 3) -> None:
    """Write a video of a few episodes. Several players are shown side by side from the same initial states."""
    import imageio.v2 as imageio

    batches = [make_envs(env_id, 1, seed) for _ in players]
    canvases = [Canvas(title) for title in players]
    observations = [envs.reset() for envs in batches]
    frames = []
    for _ in range(episodes * batches[0].episode_length):
        frames.append(np.concatenate([canvas.draw(envs, 0) for canvas, envs in zip(canvases, batches)], axis=1))
        observations = [envs.step(act(obs))[0] for envs, act, obs in zip(batches, players.values(), observations)]
    for canvas in canvases:
        canvas.close()
    with writing(path) as temporary:
        imageio.mimwrite(temporary, frames, fps=Canvas.fps, macro_block_size=4)
