"""Videos: of the particle tasks, of other PettingZoo tasks, and of none that cannot be drawn."""

import imageio.v3 as imageio
import numpy as np
import pytest

from env_utils import random_actions
from madaac_utils.video import write_video
from particle_envs import Canvas, make_task
from tests.running import run

# The first agent's action ends the episode; every picture is as bright as the episode is old.
COUNTING = """
import numpy as np
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv

class Counting(ParallelEnv):
    metadata = {"render_modes": MODES, "name": "counting"}
    possible_agents = ["a", "b"]

    def __init__(self, render_mode=None):
        self.render_mode, self.max_cycles = render_mode, 6

    def observation_space(self, agent):
        return Box(0, 1, (1,))

    def action_space(self, agent):
        return Discrete(2)

    def by_agent(self, value):
        return {agent: value for agent in self.possible_agents}

    def reset(self, seed=None, options=None):
        self.agents, self.age = list(self.possible_agents), 0
        return self.by_agent(np.zeros(1)), self.by_agent({})

    def step(self, actions):
        self.age += 1
        ended = self.by_agent(actions["a"] == 1)
        cut = self.by_agent(self.age == self.max_cycles)
        self.agents = [] if ended["a"] or cut["a"] else self.agents
        return self.by_agent(np.zeros(1)), self.by_agent(0.0), ended, cut, self.by_agent({})

    def render(self):
        return np.full((40, 60, 3), 40 * self.age, dtype=np.uint8)

def parallel_env(render_mode=None):
    return Counting(render_mode)
"""


def write_module(folder, name, modes):
    (folder / "videotasks").mkdir(exist_ok=True)
    (folder / "videotasks" / f"{name}.py").write_text(COUNTING.replace("MODES", modes))


def test_a_pettingzoo_task_draws_itself_and_waits_for_the_longer_episode(tmp_path, monkeypatch):
    write_module(tmp_path, "counting", "['rgb_array']")
    monkeypatch.syspath_prepend(tmp_path)

    def stay(obs):
        return np.zeros((1, 2), dtype=int)

    def leave(obs):
        return np.ones((1, 2), dtype=int)

    write_video(tmp_path / "v.gif", "videotasks.counting", {"expert": stay, "learner": leave}, seed=0, episodes=2)
    frames = imageio.imread(tmp_path / "v.gif", index=None)
    bottom = frames[:, -1].astype(int)[..., 0]  # below the titles
    assert frames.shape[1:] == (76, 120, 3)
    assert bottom[:, 0].tolist() == 2 * [0, 40, 80, 120, 160, 200]
    assert bottom[:, -1].tolist() == 12 * [0]


def test_both_panels_have_the_same_scale(tmp_path, monkeypatch):
    """The expert stays in the field and the learner leaves it to the right."""
    reaches = []
    draw = Canvas.draw

    def watched(canvas, task, env, reach):
        reaches.append((canvas.title, reach, Canvas.reach(task, env)))
        return draw(canvas, task, env, reach)

    monkeypatch.setattr(Canvas, "draw", watched)
    players = {"expert": lambda obs: np.array([[0, 0]]), "learner": lambda obs: np.array([[0, 1]])}
    write_video(tmp_path / "v.mp4", "cooperative_communication", players, seed=0, episodes=1)
    pairs = list(zip(reaches[::2], reaches[1::2]))
    assert len(pairs) == 25 and all(left[1] == right[1] == max(left[2], right[2]) for left, right in pairs)
    assert pairs[-1][0][2] < pairs[-1][1][2]


def test_the_scale_of_a_picture_can_be_given():
    task = make_task("cooperative_communication", 1, 0)
    task.reset()
    canvas = Canvas("task")
    near, same, far = (canvas.draw(task, 0, reach) for reach in (None, Canvas.reach(task, 0), 5.0))
    assert np.array_equal(near, same) and not np.array_equal(near, far)


def test_tasks_of_other_packages_can_be_drawn(tmp_path):
    act = random_actions(np.array([5, 5]), 0)
    write_video(tmp_path / "v.gif", "mpe2.simple_push_v3", {"random": act}, seed=0, episodes=1)
    frames = imageio.imread(tmp_path / "v.gif", index=None)
    # Equal pictures in a row are one frame of a GIF.
    assert 20 <= len(frames) <= 25 and len(np.unique(frames[-1].reshape(-1, 3), axis=0)) > 3


@pytest.mark.parametrize("modes", ["['human']", "[]"])
def test_a_task_that_cannot_be_drawn_is_refused_before_training(tmp_path, modes):
    write_module(tmp_path, "blind", modes)
    words = ["--env-id", "videotasks.blind", "--capture-video", "--runs", tmp_path / "runs"]
    done = run("train_expert_maac.py", *words, path=str(tmp_path))
    assert done.code == 2 and done.err.count("\n") == 1 and "--capture-video" in done.err
    assert not (tmp_path / "runs").exists()
