"""The particle world: physics, observations and episodes for a whole batch of environments at once.

Every task is a subclass of `ParticleTask` in its own file. The tasks of Jeon et al. 2020 follow MAAC's fork of the
original particle environments: a step updates the velocity before the position, and action 1 means +x. In mpe2's tasks
a step updates the position first, so that an action moves its agent one step later, and action 1 means -x.

Every number that an agent may observe is a row of one array, `rows [R, B]`, where B is the number of environments.
The batch comes last, so that each NumPy call runs over long contiguous vectors: this is where the speed comes from.
Named blocks of rows, such as `pos [2, entities, B]` and `vel [2, movers, B]`, are views of that array. A task declares
each observation once, as a list of (row, row to subtract); two gathers and one subtraction then serve all agents.
"""

import itertools
import json
import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

DT, DAMPING = 0.1, 0.25
CONTACT_FORCE, CONTACT_MARGIN = 100.0, 0.001
# A contact pushes with softplus(overlap / margin). At a gap of 40 margins this is below 1e-17, which changes nothing.
CONTACT_REACH = 40 * CONTACT_MARGIN

RED, GREEN, BLUE = (0.85, 0.35, 0.35), (0.35, 0.85, 0.35), (0.35, 0.35, 0.85)
DARK, GREY, PURPLE = (0.25, 0.25, 0.25), (0.6, 0.6, 0.6), (0.6, 0.4, 0.8)
Entries = list[tuple[int, int]]  # one pair per observed number: (row, row to subtract from it)


class TaskError(ValueError):
    """A mistake of the user: an unknown task, a wrong number of environments or an invalid action."""


@dataclass(frozen=True)
class Entity:
    """An agent if it moves or speaks, otherwise a landmark."""

    name: str
    moves: bool = False
    speaks: int = 0  # the number of messages it can choose from, if it speaks instead of moving
    size: float = 0.05
    force: float = 5.0  # acceleration of a move action
    mass: float = 1.0  # matters in contacts only, where it counts as in MAAC's fork
    max_speed: float = np.inf
    collides: bool = False
    color: tuple[float, float, float] = DARK

    @property
    def is_agent(self) -> bool:
        return self.moves or self.speaks > 0


def squared_length(delta: np.ndarray) -> np.ndarray:
    """Squared Euclidean length of vectors [2, ...]."""
    squares = delta * delta
    return squares[0] + squares[1]


def length(delta: np.ndarray) -> np.ndarray:
    """Euclidean length of vectors [2, ...]."""
    return np.sqrt(squared_length(delta))


def check_num_envs(num_envs: int) -> int:
    if isinstance(num_envs, bool) or not isinstance(num_envs, int | np.integer) or num_envs < 1:
        raise TaskError(f"num_envs must be a whole number of at least 1, got {num_envs!r}")
    return int(num_envs)


def check_actions(actions: np.ndarray, num_envs: int, agents: list[str], num_actions: np.ndarray) -> np.ndarray:
    """Return the actions as int64 [num_envs, agents], or raise a TaskError that names the first invalid one."""
    actions = np.asarray(actions)
    expected = (num_envs, len(agents))
    if actions.shape != expected:
        raise TaskError(f"actions must have shape {expected} (environments, agents), got {actions.shape}")
    if actions.dtype.kind not in "iu":
        raise TaskError(f"actions must be integers, got {actions.dtype}")
    actions = actions.astype(np.int64, copy=False)
    # Seen as unsigned, a negative action is a huge number, so that one comparison finds both kinds of mistake.
    invalid = actions.view(np.uint64) >= num_actions.astype(np.uint64)
    if invalid.any():
        env, agent = np.argwhere(invalid)[0]
        action, last = actions[env, agent], num_actions[agent] - 1
        raise TaskError(f"action {action} of {agents[agent]} in environment {env} must be one of 0 to {last}")
    return actions


class ParticleTask:
    """A batch of environments that step together. A subclass declares entities, observations, resets and rewards."""

    episode_length: ClassVar[int] = 25
    mpe2_physics: ClassVar[bool] = False
    landmark_range: ClassVar[float] = 1.0  # landmarks start within +- this range, agents within +-1
    extra_blocks: ClassVar[dict[str, tuple[int, ...]]] = {}  # shapes of what can be observed besides pos and vel
    drawn: ClassVar[tuple[str, ...]] = ()  # attributes that `reset_task` draws: part of the state

    def __init__(self, num_envs: int, seed: int | None = None):
        self.env_id, self.num_envs = type(self).__name__, check_num_envs(num_envs)
        self.rng = np.random.default_rng(seed)
        self.time = None  # steps since the last reset
        self.entities = self.make_entities()
        agents = [entity for entity in self.entities if entity.is_agent]
        self.agents, self.num_agents = [agent.name for agent in agents], len(agents)
        self.num_actions = np.array([5 if agent.moves else agent.speaks for agent in agents])
        self.landmarks = list(range(len(agents), len(self.entities)))
        movers = [k for k, entity in enumerate(self.entities) if entity.moves]
        self.movers = slice(movers[0], movers[-1] + 1)

        # Row 0 stays zero: it pads observations, and it is the row to subtract from an absolute value.
        self._shapes = {"zero": (1,), "pos": (2, len(self.entities)), "vel": (2, len(movers)), **self.extra_blocks}
        self.rows = np.zeros((sum(math.prod(shape) for shape in self._shapes.values()), self.num_envs))
        self._make_views()
        self._prepare_physics(movers)
        self._prepare_observations()

    def _make_views(self) -> None:
        self.blocks, self.row_numbers, start = {}, {}, 0
        for name, shape in self._shapes.items():
            stop = start + math.prod(shape)
            self.blocks[name] = self.rows[start:stop].reshape(*shape, self.num_envs)
            self.row_numbers[name] = np.arange(start, stop).reshape(shape)
            start = stop
        self.pos, self.vel = self.blocks["pos"], self.blocks["vel"]

    def __setstate__(self, state: dict) -> None:
        """Called by copy.deepcopy and pickle, in whose copies the blocks would no longer be views of the rows."""
        self.__dict__.update(state)
        self._make_views()

    # What a task declares

    def make_entities(self) -> list[Entity]:
        """Agents first, then landmarks. Agents that move stand next to each other."""
        raise NotImplementedError

    def reset_task(self) -> None:
        """Draw what an episode has besides positions, which are drawn already: goals, pairs."""

    def fill_blocks(self) -> None:
        """Fill the extra blocks that follow from positions and from what was drawn."""

    def hear(self, actions: np.ndarray) -> None:
        """Copy the messages among `actions [agents, B]` into the blocks that their receivers observe."""

    def observation(self, me: int) -> Entries:
        """What agent `me` observes, built with the helpers below."""
        raise NotImplementedError

    def reward(self) -> np.ndarray:
        """Rewards [agents, B] in the state just reached, or [1, B] if all agents receive the same."""
        raise NotImplementedError

    def appearance(self, env: int) -> list[dict]:
        """How to draw each entity: its color, the entity that is its goal, and its message."""
        return [{"color": entity.color, "goal": None, "message": None} for entity in self.entities]

    # Helpers to declare observations with

    def values(self, block: str, index=...) -> Entries:
        """The values of a block, or of one index along its first axis."""
        return [(row, 0) for row in self.row_numbers[block][index].ravel()]

    def position(self, entity: int) -> Entries:
        return [(row, 0) for row in self.row_numbers["pos"][:, entity]]

    def velocity(self, agent: int) -> Entries:
        return [(row, 0) for row in self.row_numbers["vel"][:, agent - self.movers.start]]

    def relative(self, entities: list[int], me: int) -> Entries:
        """Positions of entities, relative to agent `me`."""
        rows = self.row_numbers["pos"]
        return [pair for entity in entities for pair in zip(rows[:, entity], rows[:, me])]

    def others(self, me: int) -> list[int]:
        return [agent for agent in range(self.num_agents) if agent != me]

    # Running the world

    def reset(self, seed: int | None = None) -> np.ndarray:
        """Start a new episode everywhere. Observations are float32 [B, agents, widest], zero-padded."""
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.time = 0
        self.rows[...] = 0.0
        self.pos[...] = self.rng.uniform(-1, 1, self.pos.shape)
        self.pos[:, self.num_agents :] *= self.landmark_range
        self.reset_task()
        self.fill_blocks()
        self._measure_pairs()
        return self.observe()

    def step(self, actions: np.ndarray):
        """Advance all environments by one step, and start the next episode when this one is over.

        Returns obs, rewards [B, agents], terminated [B], truncated [B] and final_obs. At the end of an episode, obs is
        the first observation of the next episode and final_obs is the last of this one. Otherwise they are the same.
        """
        rewards = self.advance(actions)
        obs = final_obs = self.observe()
        terminated, truncated = np.zeros((2, self.num_envs), dtype=bool)
        if self.time >= self.episode_length:
            truncated[:] = True
            obs = self.reset()
        return obs, rewards, terminated, truncated, final_obs

    def advance(self, actions: np.ndarray) -> np.ndarray:
        """Apply physics and messages for one step and return the rewards. Never starts a new episode."""
        if self.time is None:
            raise TaskError("call reset() before the first step()")
        actions = check_actions(actions, self.num_envs, self.agents, self.num_actions).T  # [agents, B]
        change = self._directions.take(actions[self.movers], axis=1)  # of velocity, [2, movers, B]
        change *= self._action_gain
        if self.pairs:
            self._add_contacts(change)
        if self.mpe2_physics:
            self.pos[:, self.movers] += DT * self.vel
        self.vel *= 1 - DAMPING
        self.vel += change
        if self._max_speed is not None:
            self.vel *= np.minimum(self._max_speed / np.maximum(length(self.vel), 1e-9), 1.0)
        if not self.mpe2_physics:
            self.pos[:, self.movers] += DT * self.vel
        self._measure_pairs()
        self.hear(actions)
        self.time += 1
        rewards = np.empty((self.num_envs, self.num_agents), dtype=np.float32)
        rewards.T[...] = self.reward()
        return rewards

    def observe(self) -> np.ndarray:
        obs = np.empty(self._obs_shape, dtype=np.float32)
        # The rows are valid. mode="clip" is there because NumPy's default mode buffers `out`.
        self.rows.take(self._obs_rows, axis=0, out=self._gathered, mode="clip")
        self.rows.take(self._obs_minus, axis=0, out=self._subtracted, mode="clip")
        obs.reshape(self.num_envs, -1).T[...] = np.subtract(self._gathered, self._subtracted, out=self._gathered)
        return obs

    def touching(self) -> np.ndarray:
        """Whether each of `pairs` overlaps, bool [pairs, B]."""
        return self.pair_squared < self._touch_squared

    def get_state(self) -> dict[str, np.ndarray | int | str]:
        """Everything that the next steps depend on, as arrays and plain values."""
        state = {"rows": self.rows.copy(), "time": self.time, "rng": json.dumps(self.rng.bit_generator.state)}
        return state | {name: getattr(self, name).copy() for name in self.drawn}

    def set_state(self, state: dict) -> np.ndarray:
        """Continue from `get_state()` and return the observations. Without "rng", keep the own random generator."""
        if state["rows"].shape != self.rows.shape:
            raise TaskError(f"the state has rows of shape {state['rows'].shape}, but this task has {self.rows.shape}")
        self.rows[...] = state["rows"]
        self.time = int(state["time"])
        for name in self.drawn:
            setattr(self, name, np.array(state[name], dtype=np.int64))
        if "rng" in state:
            self.rng.bit_generator.state = json.loads(state["rng"])
        self.fill_blocks()
        self._measure_pairs()
        return self.observe()

    # Tables and contacts

    def _prepare_observations(self) -> None:
        observations = [self.observation(me) for me in range(self.num_agents)]
        self.obs_sizes = np.array([len(entries) for entries in observations])
        widest = max(self.obs_sizes)
        self._obs_shape = (self.num_envs, self.num_agents, widest)
        padded = np.array([entries + self.values("zero") * (widest - len(entries)) for entries in observations])
        self._obs_rows, self._obs_minus = padded.reshape(-1, 2).T.copy()
        # Reused at every step: a new array of megabytes costs more in page faults than in arithmetic.
        self._gathered, self._subtracted = np.empty((2, len(self._obs_rows), self.num_envs))

    def _prepare_physics(self, movers: list[int]) -> None:
        self._directions = np.array([[0, 1, -1, 0, 0], [0, 0, 0, 1, -1]]) * (-1.0 if self.mpe2_physics else 1.0)
        self._action_gain = np.array([[self.entities[m].force * DT] for m in movers])
        max_speed = np.array([[self.entities[m].max_speed] for m in movers])
        self._max_speed = max_speed if np.isfinite(max_speed).any() else None
        # Pairs that can touch
        solid = [k for k, entity in enumerate(self.entities) if entity.collides]
        self.pairs = [(a, b) for a, b in itertools.combinations(solid, 2) if a in movers or b in movers]
        if not self.pairs:
            return
        first, second = self._pair_entities = np.array(self.pairs).T  # [2, pairs]
        self._pair_cells = self._pair_entities * self.num_envs
        size, mass = np.array([(entity.size, entity.mass) for entity in self.entities]).T
        self._touch = size[first] + size[second]
        self._touch_squared = (self._touch**2)[:, None]
        self._reach_squared = ((self._touch + CONTACT_REACH) ** 2)[:, None]
        # [2, pairs]: the gain in velocity of the first and the second of each pair per push. MAAC's fork multiplies
        # forces by the other's mass over the own, and the acceleration is force over mass.
        weights = np.array([mass[second] / mass[first] ** 2, -mass[first] / mass[second] ** 2])
        self._push_gain = CONTACT_FORCE * DT * weights

    def _measure_pairs(self) -> None:
        """Offsets and squared distances of `pairs`: for the rewards of this step and the contacts of the next."""
        if self.pairs:
            self.pair_delta = self.pos.take(self._pair_entities[0], axis=1)
            self.pair_delta -= self.pos.take(self._pair_entities[1], axis=1)
            self.pair_squared = squared_length(self.pair_delta)

    def _add_contacts(self, change: np.ndarray) -> None:
        """Add the effect of contacts to `change [2, movers, B]`, computing only the few pairs within reach."""
        close = (self.pair_squared < self._reach_squared).ravel().nonzero()[0]  # index pair * B + env
        if close.size == 0:
            return
        pair, env = np.divmod(close, self.num_envs)
        distance = np.sqrt(self.pair_squared.ravel()[close])
        overlap = self._touch[pair] - distance
        # The force on the first is contact_force * (delta / distance) * margin * softplus(overlap / margin).
        strength = CONTACT_MARGIN * np.logaddexp(0.0, overlap / CONTACT_MARGIN) / distance
        push = strength * self._push_gain[:, pair]  # [2, close]
        cell = (self._pair_cells[:, pair] + env).ravel()  # index into [entities, B]
        for axis in (0, 1):
            pushes = push * self.pair_delta[axis].ravel()[close]
            total = np.bincount(cell, pushes.ravel(), len(self.entities) * self.num_envs)
            change[axis] += total.reshape(-1, self.num_envs)[self.movers]


class GoalTask(ParticleTask):
    """A task in which one of the landmarks, drawn for every episode, is the goal."""

    extra_blocks: ClassVar = {"goal_position": (2,)}
    drawn = ("goal",)

    def reset_task(self):
        self.goal = self.rng.integers(len(self.landmarks), size=self.num_envs)

    def fill_blocks(self):
        self.blocks["goal_position"][...] = self.pos[:, self.num_agents + self.goal, np.arange(self.num_envs)]

    def goal_from(self, me: int) -> Entries:
        """For observations: the goal's position relative to agent `me`."""
        return list(zip(self.row_numbers["goal_position"], self.row_numbers["pos"][:, me]))
