"""Videos of policies, as .mp4 or .gif: of the particle tasks, and of PettingZoo tasks that can render rgb_array."""

import functools
from pathlib import Path

import numpy as np

from env_utils import PettingZooEnvs, Policy, make_envs
from madaac_utils.files import UserError, writing
from particle_envs import Canvas, ParticleParallelEnv, ParticleTask

VIDEO_FORMATS = (".mp4", ".gif")
GIF_WIDTH = 900  # in pixels: a page shows no more


def require_can_draw(envs, flag: str = "--capture-video") -> None:
    """Raise an error before training if no video of the task can be made after it."""
    if particle_task(envs) is None:
        modes = (getattr(envs.envs[0], "metadata", None) or {}).get("render_modes", ())
        if "rgb_array" not in modes:
            raise UserError(f"{flag} cannot draw {envs.env_id!r}, because its render modes do not include rgb_array")


def particle_task(envs) -> ParticleTask | None:
    """The particle task of a batch, also if it is one that stands behind PettingZoo's interface."""
    if isinstance(envs, ParticleTask):
        return envs
    inner = envs.envs[0].unwrapped
    return inner.task if isinstance(inner, ParticleParallelEnv) else None


class Player:
    """One policy that plays its own copy of the task."""

    def __init__(self, title: str, act: Policy, env_id: str, seed: int):
        self.title, self.act, self.envs = title, act, make_envs(env_id, 1, seed)
        self.task = particle_task(self.envs)
        if self.task is None:
            make = functools.partial(self.envs.make, render_mode="rgb_array")
            self.envs = PettingZooEnvs(make, 1, seed, env_id)
        self.canvas = Canvas(title) if self.task is not None else None
        self.obs, self.over = self.envs.reset(), False

    def draw(self, reach: float) -> np.ndarray:
        """An image [height, width, 3]; the particle tasks show everything within +-reach."""
        if self.canvas is not None:
            return self.canvas.draw(self.task, 0, reach)
        return with_title(self.envs.envs[0].render(), self.title)

    def step(self) -> None:
        self.obs, _, terminated, truncated, _ = self.envs.step(self.act(self.obs))
        self.over = bool(terminated[0] or truncated[0])


def with_title(frame: np.ndarray, title: str) -> np.ndarray:
    """The frame under a strip with the title."""
    from PIL import Image, ImageDraw, ImageFont

    strip = Image.new("RGB", (frame.shape[1], 36), "white")
    ImageDraw.Draw(strip).text(
        (frame.shape[1] / 2, 18), title, fill="black", font=ImageFont.load_default(20), anchor="mm"
    )
    return np.concatenate([np.asarray(strip), frame[..., :3]])


def write_video(path: Path, env_id: str, players: dict[str, Policy], seed: int, episodes: int = 3) -> None:
    """Write a video of a few episodes. Several players are shown side by side from the same initial states."""
    import imageio.v3 as imageio

    seats = [Player(title, act, env_id, seed) for title, act in players.items()]
    frames = []
    for _ in range(episodes):
        panels = [None] * len(seats)
        while not all(seat.over for seat in seats):
            # A player whose episode is over keeps its last picture until the others have ended, too.
            reach = max((Canvas.reach(seat.task, 0) for seat in seats if seat.task and not seat.over), default=1)
            panels = [panel if seat.over else seat.draw(reach) for seat, panel in zip(seats, panels)]
            frames.append(np.concatenate(panels, axis=1))
            for seat in seats:
                if not seat.over:
                    seat.step()
        for seat in seats:
            seat.over = False
    fps = Canvas.fps if seats[0].task else seats[0].envs.envs[0].metadata.get("render_fps", Canvas.fps)
    for seat in seats:
        if seat.canvas:
            seat.canvas.close()
    with writing(path) as temporary:
        if Path(path).suffix == ".gif":
            imageio.imwrite(temporary, shrink(frames), duration=1000 / fps, loop=0)
        else:
            imageio.imwrite(temporary, frames, fps=fps, macro_block_size=4)


def shrink(frames: list[np.ndarray]) -> list[np.ndarray]:
    """Frames of at most GIF_WIDTH pixels in width."""
    from PIL import Image

    height, width = frames[0].shape[:2]
    if width <= GIF_WIDTH:
        return frames
    size = GIF_WIDTH, round(height * GIF_WIDTH / width)
    return [np.asarray(Image.fromarray(frame).resize(size, Image.Resampling.LANCZOS)) for frame in frames]
