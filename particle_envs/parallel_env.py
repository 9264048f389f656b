"""One environment of a particle task behind PettingZoo's parallel API."""

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

from particle_envs.render import Canvas
from particle_envs.world import ParticleTask, TaskError


class ParticleParallelEnv(ParallelEnv):
    def __init__(self, task: ParticleTask, render_mode: str | None = None):
        """`task` is a batch of one environment."""
        if render_mode not in (None, "human", "rgb_array"):
            raise TaskError(f"render_mode must be 'human', 'rgb_array' or None, got {render_mode!r}")
        self.task = task
        self.render_mode = render_mode
        self.metadata = {
            "render_modes": ["human", "rgb_array"],
            "name": task.env_id,
            "render_fps": Canvas.fps,
            "is_parallelizable": True,
        }
        self.possible_agents = list(task.agents)
        self.agents: list[str] = []
        self.observation_spaces = {
            agent: spaces.Box(-np.inf, np.inf, (int(size),), np.float32)
            for agent, size in zip(task.agents, task.obs_sizes)
        }
        self.action_spaces = {agent: spaces.Discrete(int(n)) for agent, n in zip(task.agents, task.num_actions)}
        self._canvas = None

    def observation_space(self, agent: str) -> spaces.Box:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Discrete:
        return self.action_spaces[agent]

    def _by_agent(self, obs: np.ndarray) -> dict[str, np.ndarray]:
        """Observations [1, agents, widest] by agent, without the padding."""
        return {agent: row[:size] for agent, row, size in zip(self.task.agents, obs[0], self.task.obs_sizes)}

    def reset(self, seed: int | None = None, options: dict | None = None):
        self.agents = list(self.possible_agents)
        obs = self.task.reset(seed)
        if self.render_mode == "human":
            self.render()
        return self._by_agent(obs), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, int]):
        if not self.agents:
            raise TaskError("there is no episode to continue: call reset() before step()")
        missing = [agent for agent in self.agents if agent not in actions]
        if missing:
            raise TaskError(f"no action for {', '.join(missing)}")
        rewards = self.task.advance(np.array([[actions[agent] for agent in self.agents]]))[0]
        agents, over = self.agents, self.task.time >= self.task.episode_length
        if over:
            self.agents = []
        if self.render_mode == "human":
            self.render()
        return (
            self._by_agent(self.task.observe()),
            {agent: float(reward) for agent, reward in zip(agents, rewards)},
            {agent: False for agent in agents},
            {agent: over for agent in agents},
            {agent: {} for agent in agents},
        )

    def state(self) -> np.ndarray:
        """The observations of all agents, concatenated."""
        return np.concatenate(list(self._by_agent(self.task.observe()).values()))

    def render(self) -> np.ndarray | None:
        if self.render_mode is None:
            return None
        if self._canvas is None:
            self._canvas = Canvas(self.metadata["name"], window=self.render_mode == "human")
        return self._canvas.draw(self.task, 0)

    def close(self) -> None:
        if self._canvas is not None:
            self._canvas.close()
            self._canvas = None
