"""The multi-agent particle tasks, batched over environments in NumPy, and one PettingZoo environment for each.

Two families live here, and they differ in more than their rewards (docs/tasks.md has the whole list):

- the tasks of Jeon et al. 2020: `keep_away(_maac)`, `cooperative_communication`, `cooperative_navigation`,
  `rover_tower_<n>`. They follow the forks of the original particle environments that the paper's experiments
  ran on: velocity is integrated before position, action 1 is +x.
- mpe2's `simple_tag`, `simple_spread`, `simple_push`, `simple_speaker_listener`, `simple_adversary`: position is
  integrated before velocity, action 1 is -x, so that an action moves its agent one step later.

How a task is written. All numbers that a task's agents may observe are rows of one array, `rows [R, B]`, with the
batch of B environments last: every NumPy call then runs over long contiguous vectors, which is where the speed
comes from. `pos [2, entities, B]` and `vel [2, movers, B]` are views of it. An observation is declared once, as a
list of (row, row subtracted from it), and read off by two gathers and one subtraction for all agents at once.

    tasks = make_task("cooperative_navigation", num_envs=100, seed=0)
    obs = tasks.reset()                                                  # [100, 3, 16]
    obs, rewards, terminated, truncated, final_obs = tasks.step(actions)  # actions [100, 3]

    env = CooperativeNavigation.parallel_env(render_mode="human")        # one environment, PettingZoo's API
"""

import difflib
import functools
import itertools
import json
import re
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv

DT, DAMPING = 0.1, 0.25
CONTACT_FORCE, CONTACT_MARGIN = 100.0, 0.001
# Contact pushes with softplus((overlap) / margin): 40 margins apart the force is below 1e-18: nothing.
CONTACT_REACH = 40 * CONTACT_MARGIN
RED, GREEN, BLUE = (0.85, 0.35, 0.35), (0.35, 0.85, 0.35), (0.35, 0.35, 0.85)
DARK, GREY, PURPLE = (0.25, 0.25, 0.25), (0.6, 0.6, 0.6), (0.6, 0.4, 0.8)
WHITE, BLACK, INK = (255, 255, 255), (0, 0, 0), (40, 40, 40)
LANDMARK_COLORS = ((0.65, 0.15, 0.15), (0.15, 0.65, 0.15), (0.15, 0.15, 0.65))


class TaskError(ValueError):
    """A wrong task id, number of environments or action: the user's to mend."""


@dataclass(frozen=True)
class Body:
    """An entity of the particle world. One that moves or speaks is an agent; the others are landmarks."""

    name: str
    moves: bool = False
    speaks: int = 0  # how many messages it has; speaking takes the place of moving
    size: float = 0.05
    force: float = 5.0  # of a move action, on a mass of 1
    mass: float = 1.0
    max_speed: float = np.inf
    collides: bool = False
    color: tuple[float, float, float] = DARK

    @property
    def is_agent(self) -> bool:
        return self.moves or self.speaks > 0


def length(delta: np.ndarray) -> np.ndarray:
    """Euclidean length over the first axis (x and y) of [2, ...]."""
    return np.sqrt(squared_length(delta))


def squared_length(delta: np.ndarray) -> np.ndarray:
    squares = delta * delta
    return squares[0] + squares[1]


class ParticleTask:
    """A lockstep batch of one task. Subclasses declare bodies, observations, resets and rewards; this steps them."""

    episode_length: ClassVar[int] = 25
    mpe2_physics: ClassVar[bool] = False  # position before velocity, and the directions of actions flipped
    maac_physics: ClassVar[bool] = False  # pushes multiplied by the own mass, contacts by the other's over the own
    landmark_range: ClassVar[float] = 1.0  # landmarks start uniformly within +- this, agents within +-1
    extra_rows: ClassVar[dict[str, int]] = {}  # observed rows beyond positions and velocities: {name: how many}

    def __init__(self, num_envs: int, seed: int | None = None):
        if isinstance(num_envs, bool) or not isinstance(num_envs, int | np.integer) or num_envs < 1:
            raise TaskError(f"num_envs must be a whole number of at least 1, got {num_envs!r}")
        self.num_envs = int(num_envs)
        self.rng = np.random.default_rng(seed)
        self.bodies = self.make_bodies()
        agents = [body for body in self.bodies if body.is_agent]
        self.agents = [body.name for body in agents]
        self.num_agents = len(agents)
        self.num_actions = np.array([5 if body.moves else body.speaks for body in agents])
        self.landmarks = list(range(len(agents), len(self.bodies)))
        movers = [i for i, body in enumerate(self.bodies) if body.moves]
        self.movers = slice(movers[0], movers[-1] + 1)  # the movers of every task stand next to one another

        # One row a number, one column an environment. Row 0 stays zero: "nothing" in an observation.
        num_pos, num_vel = 2 * len(self.bodies), 2 * len(movers)
        self.rows = np.zeros((1 + num_pos + num_vel + sum(self.extra_rows.values()), self.num_envs))
        self.pos = self.rows[1 : 1 + num_pos].reshape(2, len(self.bodies), self.num_envs)
        self.vel = self.rows[1 + num_pos : 1 + num_pos + num_vel].reshape(2, len(movers), self.num_envs)
        self.extra_start, start = {}, 1 + num_pos + num_vel
        for name, count in self.extra_rows.items():
            self.extra_start[name], start = start, start + count
        self.time = None  # steps since the last reset
        self.goal = np.zeros(self.num_envs, dtype=np.int64)  # which landmark, in the tasks that have one goal

        self._prepare_physics(movers)
        self._prepare_observations()

    # What a task declares.

    def make_bodies(self) -> list[Body]:
        """Agents first, then landmarks."""
        raise NotImplementedError

    def observation(self, me: int) -> list[tuple[int, int]]:
        """What agent `me` sees, in order: (row, row subtracted from it). Built from the helpers below."""
        raise NotImplementedError

    def reset_task(self) -> None:
        """Draw what an episode has beyond positions (goals, pairs). Positions are drawn already."""

    def hear(self, actions: np.ndarray) -> None:
        """Put the messages among `actions [agents, B]` where their receivers observe them."""

    def reward(self) -> np.ndarray:
        """Rewards of the state just reached, [agents, B] or [1, B] when all share one."""
        raise NotImplementedError

    def appearance(self, env: int) -> list[dict]:
        """For rendering, a dict an entity: color, label, goal (index of the entity it is after, or None), message."""
        return [
            {"color": body.color, "label": body.name if body.is_agent else "", "goal": None, "message": None}
            for body in self.bodies
        ]

    # Words to declare observations with: each gives (row, row subtracted) pairs.

    def position(self, entity: int) -> list[tuple[int, int]]:
        return [(1 + entity, 0), (1 + len(self.bodies) + entity, 0)]

    def relative(self, entities: list[int], me: int) -> list[tuple[int, int]]:
        """Positions of entities as seen from `me`."""
        mine = self.position(me)
        return [(row, mine[axis][0]) for e in entities for axis, (row, _) in enumerate(self.position(e))]

    def goal_from(self, me: int) -> list[tuple[int, int]]:
        """The extra rows `goal_position` as seen from `me`."""
        return [(goal, mine) for (goal, _), (mine, _) in zip(self.extra("goal_position"), self.position(me))]

    def velocity(self, agent: int) -> list[tuple[int, int]]:
        x_row = 1 + 2 * len(self.bodies) + agent - self.movers.start
        return [(x_row, 0), (x_row + self.vel.shape[1], 0)]

    def extra(self, name: str, first: int = 0, count: int | None = None) -> list[tuple[int, int]]:
        count = self.extra_rows[name] - first if count is None else count
        return [(self.extra_start[name] + first + k, 0) for k in range(count)]

    def nothing(self, count: int) -> list[tuple[int, int]]:
        return [(0, 0)] * count

    def others(self, me: int) -> list[int]:
        return [agent for agent in range(self.num_agents) if agent != me]

    def extra_view(self, name: str) -> np.ndarray:
        start = self.extra_start[name]
        return self.rows[start : start + self.extra_rows[name]]

    # The machinery.

    def _prepare_physics(self, movers: list[int]) -> None:
        # Velocity gained by action a of mover m stands in column 5 m + a.
        directions = np.array([[0, 1, -1, 0, 0], [0, 0, 0, 1, -1]]) * (-1.0 if self.mpe2_physics else 1.0)
        mass = np.array([body.mass for body in self.bodies])
        force = np.array([self.bodies[m].force for m in movers]) * (mass[movers] if self.maac_physics else 1.0)
        gain = force / mass[movers] * DT
        self._kicks = (directions[:, None, :] * gain[:, None]).reshape(2, -1)
        self._kick_columns = (5 * np.arange(len(movers)))[:, None]
        max_speed = np.array([self.bodies[m].max_speed for m in movers])[:, None]
        # No limit becomes a huge one, which can be divided by itself.
        self._max_speed = np.minimum(max_speed, 1e100) if np.isfinite(max_speed).any() else None
        self._action_limits = self.num_actions.astype(np.uint64)

        # Pairs that can touch. What pushes an immovable body lands in a spare row behind the movers'.
        pairs = [
            (a, b)
            for a, b in itertools.combinations(range(len(self.bodies)), 2)
            if self.bodies[a].collides and self.bodies[b].collides and (a in movers or b in movers)
        ]
        self.pairs = pairs
        if not pairs:
            return
        first, second = np.array(pairs).T
        self._pair_first, self._pair_second = first, second
        self._touch = np.array([self.bodies[a].size + self.bodies[b].size for a, b in pairs])
        self._touch_squared = (self._touch**2)[:, None]
        self._reach_squared = ((self._touch + CONTACT_REACH) ** 2)[:, None]
        mover_row = np.array([movers.index(e) if e in movers else len(movers) for e in range(len(self.bodies))])
        # [2, pairs]: for the first and the second of a pair, the row its push goes to, and push to velocity.
        self._push_row = mover_row[np.stack([first, second])] * self.num_envs
        self._push_gain = CONTACT_FORCE * DT * np.stack([1 / mass[first], -1 / mass[second]])
        if self.maac_physics:  # all that collides there moves
            self._push_gain *= np.stack([mass[second] / mass[first], mass[first] / mass[second]])

    def _prepare_observations(self) -> None:
        seen = [self.observation(me) for me in range(self.num_agents)]
        self.obs_sizes = np.array([len(entries) for entries in seen])
        widest = int(self.obs_sizes.max())
        padded = np.array([entries + self.nothing(widest - len(entries)) for entries in seen])
        self._obs_rows, self._obs_minus = padded.reshape(-1, 2).T.copy()
        self._obs_shape = (self.num_envs, self.num_agents, widest)
        # Kept from step to step: a fresh array of megabytes costs more in page faults than in arithmetic.
        self._seen, self._minus = np.empty((2, len(self._obs_rows), self.num_envs))

    def reset(self, seed: int | None = None) -> np.ndarray:
        """Start a new episode everywhere; observations float32 [B, agents, widest observation], zero-padded."""
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.time = 0
        self.rows[1 + self.pos.shape[0] * self.pos.shape[1] :] = 0.0  # velocities, messages and what else there is
        self.pos[...] = self.rng.uniform(-1, 1, self.pos.shape)
        if self.landmark_range != 1:
            self.pos[:, self.num_agents :] *= self.landmark_range
        self.reset_task()
        self._measure_pairs()
        return self.observe()

    def step(self, actions: np.ndarray):
        """One step of all environments; at the end of an episode they start the next one by themselves.

        Returns obs, rewards [B, agents], terminated [B], truncated [B], final_obs. Where an episode ended, obs is
        the first of the next and final_obs the last of the old; elsewhere the two are the same.
        """
        rewards = self.advance(actions)
        final_obs = self.observe()
        terminated = np.zeros(self.num_envs, dtype=bool)
        if self.time < self.episode_length:
            return final_obs, rewards, terminated, np.zeros(self.num_envs, dtype=bool), final_obs
        return self.reset(), rewards, terminated, np.ones(self.num_envs, dtype=bool), final_obs

    def advance(self, actions: np.ndarray) -> np.ndarray:
        """Physics, messages and rewards of one step, without what `step` does at the end of an episode."""
        if self.time is None:
            raise TaskError("call reset() before the first step()")
        actions = self._checked(actions).T  # [agents, B]
        kick = self._kicks.take(actions[self.movers] + self._kick_columns, axis=1)  # [2, movers, B]
        if self.pairs:
            self._add_contacts(kick)
        if self.mpe2_physics:
            self.pos[:, self.movers] += DT * self.vel
        self.vel *= 1 - DAMPING
        self.vel += kick
        if self._max_speed is not None:
            self.vel *= self._max_speed / np.maximum(length(self.vel), self._max_speed)  # exactly 1 below the limit
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
        # mode="clip" only because NumPy buffers `out` in its default mode; the rows are right by construction.
        self.rows.take(self._obs_rows, axis=0, out=self._seen, mode="clip")
        self.rows.take(self._obs_minus, axis=0, out=self._minus, mode="clip")
        obs.reshape(self.num_envs, -1).T[...] = np.subtract(self._seen, self._minus, out=self._seen)
        return obs

    def _measure_pairs(self) -> None:
        """Offsets and squared distances of pairs that can touch: for the rewards now and the contacts of next step."""
        if self.pairs:
            self.pair_delta = self.pos.take(self._pair_first, axis=1)
            self.pair_delta -= self.pos.take(self._pair_second, axis=1)
            self.pair_squared = squared_length(self.pair_delta)

    def _add_contacts(self, kick: np.ndarray) -> None:
        """Add what contacts change of velocities to kick [2, movers, B]; only the few pairs in reach are computed."""
        close = (self.pair_squared < self._reach_squared).ravel().nonzero()[0]  # index pair * B + env
        if close.size == 0:
            return
        pair, env = np.divmod(close, self.num_envs)
        distance = np.sqrt(self.pair_squared.ravel()[close])
        overlap = self._touch[pair] - distance
        # F = contact_force * (delta / d) * margin * softplus(overlap / margin), on the first; -F on the second
        strength = CONTACT_MARGIN * np.logaddexp(0.0, overlap / CONTACT_MARGIN) / distance
        target = (self._push_row[:, pair] + env).ravel()  # [2 * close]: cells of [movers + 1, B]
        push = strength * self._push_gain[:, pair]  # [2, close]
        cells = kick[0].size
        for axis in (0, 1):
            change = push * self.pair_delta[axis].ravel()[close]
            total = np.bincount(target, change.ravel(), cells + self.num_envs)
            kick[axis] += total[:cells].reshape(kick[axis].shape)

    def _checked(self, actions: np.ndarray) -> np.ndarray:
        actions = np.asarray(actions)
        if actions.shape != (self.num_envs, self.num_agents):
            expected = (self.num_envs, self.num_agents)
            raise TaskError(f"actions must have shape {expected} (environments, agents), got {actions.shape}")
        if actions.dtype != np.int64:
            if not np.issubdtype(actions.dtype, np.integer):
                raise TaskError(f"actions must be integers, got {actions.dtype}")
            actions = actions.astype(np.int64)
        # Seen as unsigned, a negative action is a huge one: one comparison finds both kinds of mistake.
        if (actions.view(np.uint64) >= self._action_limits).any():
            env, agent = np.argwhere(actions.view(np.uint64) >= self._action_limits)[0]
            raise TaskError(
                f"action {actions[env, agent]} of {self.agents[agent]} in environment {env} is out of range: "
                f"it has actions 0 to {self.num_actions[agent] - 1}"
            )
        return actions

    # State: to put two simulators into the same situation, and to go on after an interruption.

    def get_state(self) -> dict[str, np.ndarray | int | str]:
        """Everything the next steps depend on, as arrays and plain values."""
        generator = json.dumps(self.rng.bit_generator.state)
        return {"rows": self.rows.copy(), "goal": self.goal.copy(), "time": self.time, "rng": generator}

    def set_state(self, state: dict) -> np.ndarray:
        """Continue from `get_state()` (the random generator only if it is there); returns the observations."""
        if state["rows"].shape != self.rows.shape:
            raise TaskError(f"state has rows of shape {state['rows'].shape}, this task {self.rows.shape}")
        self.rows[...] = state["rows"]
        self.goal = np.array(state["goal"], dtype=np.int64)
        self.time = int(state["time"])
        if "rng" in state:
            self.rng.bit_generator.state = json.loads(state["rng"])
        self.restore_task()
        self._measure_pairs()
        return self.observe()

    def restore_task(self) -> None:
        """Fill the rows that follow from goals and positions and stay the same for an episode."""

    def goal_position(self) -> np.ndarray:
        """[2, B]: where the goal landmark is."""
        return self.pos[:, self.num_agents + self.goal, np.arange(self.num_envs)]

    @classmethod
    def parallel_env(cls, render_mode: str | None = None, **kwargs) -> "ParticleParallelEnv":
        """The task as a PettingZoo parallel environment."""
        return ParticleParallelEnv(functools.partial(cls, **kwargs), render_mode, cls.__name__)


# The tasks of Jeon et al. 2020.


class KeepAway(ParticleTask):
    """A reacher goes for one of two landmarks; a heavy pusher, who knows which, keeps it away."""

    landmark_range = 0.8
    landmark_colors = ((0.1, 0.9, 0.1), (0.1, 0.1, 0.9))
    extra_rows: ClassVar = {"goal_position": 2, "reacher_color": 3, "landmark_colors": 6}

    def make_bodies(self):
        return [
            Body("pusher_0", moves=True, mass=5.0, max_speed=2.0, collides=True, color=RED),
            Body("reacher_0", moves=True, max_speed=2.0, collides=True, color=GREEN),
            *[Body(f"landmark_{k}", color=color) for k, color in enumerate(self.landmark_colors)],
        ]

    def observation(self, me):
        places, other = self.relative(self.landmarks, me), self.relative(self.others(me), me)
        if me == 0:
            return self.velocity(me) + self.goal_from(me) + places + other
        colors = self.extra("reacher_color"), self.extra("landmark_colors")
        return self.velocity(me) + self.goal_from(me) + colors[0] + places + colors[1] + other

    def reset_task(self):
        self.goal = self.rng.integers(2, size=self.num_envs)
        self.restore_task()

    def restore_task(self):
        self.extra_view("goal_position")[...] = self.goal_position()
        color = self.extra_view("reacher_color")
        color[...] = 0.25
        color[self.goal + 1, np.arange(self.num_envs)] += 0.5
        self.extra_view("landmark_colors")[...] = np.ravel(self.landmark_colors)[:, None]

    def reward(self):
        reacher_to_goal = length(self.pos[:, 1] - self.extra_view("goal_position"))
        pusher_to_reacher = np.sqrt(self.pair_squared[0])
        return np.stack([5.0 * reacher_to_goal - 0.5 * pusher_to_reacher, -reacher_to_goal])

    def appearance(self, env):
        looks = super().appearance(env)
        looks[1]["goal"], looks[1]["color"] = 2 + self.goal[env], tuple(self.extra_view("reacher_color")[:, env])
        return looks


class KeepAwayMAAC(KeepAway):
    """Keep Away as MAAC's fork of the particle environments would play it, which fits the paper's scores.

    There the pusher is as fast as the reacher, and in contacts its mass counts twice.
    """

    maac_physics = True


class SpeakerListenerTask(ParticleTask):
    """A speaker sees which landmark is the goal and cannot move; a listener moves and hears. Both are paid alike."""

    extra_rows: ClassVar = {"goal_position": 2, "goal_color": 3, "message": 3}
    speaker, listener = 0, 1

    def make_bodies(self):
        return [
            Body("speaker_0", speaks=3, size=0.075, color=PURPLE),
            Body("listener_0", moves=True, size=0.075, color=GREY),
            *[Body(f"landmark_{k}", size=0.04, color=color) for k, color in enumerate(LANDMARK_COLORS)],
        ]

    def observation(self, me):
        if me == self.speaker:
            return self.extra("goal_color")
        return self.velocity(me) + self.relative(self.landmarks, me) + self.extra("message")

    def reset_task(self):
        self.goal = self.rng.integers(3, size=self.num_envs)
        self.restore_task()

    def restore_task(self):
        self.extra_view("goal_position")[...] = self.goal_position()
        self.extra_view("goal_color")[...] = np.array(LANDMARK_COLORS)[self.goal].T

    def hear(self, actions):
        np.equal(actions[self.speaker], np.arange(3)[:, None], out=self.extra_view("message"))

    def listener_to_goal(self) -> np.ndarray:
        return self.pos[:, self.listener] - self.extra_view("goal_position")

    def appearance(self, env):
        looks = super().appearance(env)
        looks[self.listener]["goal"] = 2 + self.goal[env]
        message = self.extra_view("message")[:, env]
        looks[self.speaker]["message"] = int(message.argmax()) if message.any() else None
        return looks


class CooperativeCommunication(SpeakerListenerTask):
    """As the paper has it: each agent's reward is the sum of both agents' negative distances."""

    def reward(self):
        return -2.0 * length(self.listener_to_goal())[None]


class CooperativeNavigation(ParticleTask):
    """Three agents cover three landmarks without running into one another; all receive the sum of their rewards."""

    def make_bodies(self):
        agents = [Body(f"agent_{k}", moves=True, size=0.15, collides=True, color=BLUE) for k in range(3)]
        return agents + [Body(f"landmark_{k}") for k in range(3)]

    def observation(self, me):
        # The last four are the others' messages, which nobody sends. Unlike in mpe2, the own position is missing.
        return (
            self.velocity(me) + self.relative(self.landmarks, me) + self.relative(self.others(me), me) + self.nothing(4)
        )

    def reward(self):
        to_landmarks = length(self.pos[:, :3, None] - self.pos[:, None, 3:])  # [agents, landmarks, B]
        uncovered = np.add.reduce(np.minimum.reduce(to_landmarks, axis=0), axis=0)
        overlap = np.add.reduce(np.minimum(np.sqrt(self.pair_squared) - 0.3, 0.0), axis=0)
        # r_i = -sum_l min_a d(a, l) + sum_a min(d(a, i) - 0.3, 0), where a = i adds -0.3; everyone gets the sum of
        # the three: each pair counts twice, and the constant is -0.9 a step.
        return (-3.0 * uncovered - 0.9 + 2.0 * overlap)[None]


class RoverTower(ParticleTask):
    """Half of the agents are rovers, half towers, paired anew each episode: a tower guides its rover to a goal."""

    num_messages, num_landmarks = 5, 6

    def __init__(self, num_envs: int, seed: int | None = None, num_agents: int = 8):
        if num_agents < 4 or num_agents % 2:
            raise TaskError(f"rover_tower needs an even number of at least 4 agents, got {num_agents}")
        half = self.num_rovers = num_agents // 2
        self.extra_rows = {
            "tower_one_hot": half * half,  # a rover's tower
            "message": half * self.num_messages,  # what a rover hears
            "rover_one_hot": half * half,  # a tower's rover
            "rover_of_tower": half * 2,  # where that rover is
            "goal_of_tower": half * 2,  # where it should go
        }
        super().__init__(num_envs, seed)
        self.rover_of_tower = np.zeros((half, self.num_envs), dtype=np.int64)
        self.goal_of_tower = np.zeros((half, self.num_envs), dtype=np.int64)

    def make_bodies(self):
        rover = {"moves": True, "size": 0.075, "force": 1.5 * 1.5, "max_speed": 1.0, "color": BLUE}
        rovers = [Body(f"rover_{k}", **rover) for k in range(self.num_rovers)]
        towers = [
            Body(f"tower_{k}", speaks=self.num_messages, size=0.075, color=PURPLE) for k in range(self.num_rovers)
        ]
        return rovers + towers + [Body(f"landmark_{k}", size=0.04) for k in range(self.num_landmarks)]

    def observation(self, me):
        half = self.num_rovers
        if me < half:
            message = self.extra("message", me * self.num_messages, self.num_messages)
            return self.extra("tower_one_hot", me * half, half) + message + self.position(me) + self.velocity(me)
        tower = me - half
        rover, goal = (self.extra(f"{name}_of_tower", 2 * tower, 2) for name in ("rover", "goal"))
        return self.extra("rover_one_hot", tower * half, half) + rover + goal

    def reset_task(self):
        half, shape = self.num_rovers, (self.num_rovers, self.num_envs)
        self.rover_of_tower = self.rng.permuted(np.tile(np.arange(half)[:, None], self.num_envs), axis=0)
        self.goal_of_tower = self.rng.integers(self.num_landmarks, size=shape)
        self.restore_task()

    def restore_task(self):
        half, env = self.num_rovers, np.arange(self.num_envs)
        self.tower_of_rover = self.rover_of_tower.argsort(axis=0)
        # Flat indices into [half, B] arrays: faster than indexing with two arrays at every step.
        self._rover_cells = self.rover_of_tower * self.num_envs + env
        self._tower_cells = self.tower_of_rover * self.num_envs + env
        one_hot = np.arange(half)[None, :, None]
        self.extra_view("rover_one_hot").reshape(half, half, -1)[...] = self.rover_of_tower[:, None] == one_hot
        self.extra_view("tower_one_hot").reshape(half, half, -1)[...] = self.tower_of_rover[:, None] == one_hot
        goals = self.pos[:, 2 * half + self.goal_of_tower, env]  # [2, towers, B]
        self.extra_view("goal_of_tower").reshape(half, 2, -1)[...] = goals.transpose(1, 0, 2)
        self.goal_of_rover = goals.reshape(2, -1).take(self._tower_cells, axis=1)  # [2, rovers, B]
        self._see_rovers()

    def _see_rovers(self):
        rovers = self.pos[:, : self.num_rovers].reshape(2, -1).take(self._rover_cells, axis=1)
        self.extra_view("rover_of_tower").reshape(self.num_rovers, 2, -1)[...] = rovers.transpose(1, 0, 2)

    def hear(self, actions):
        heard = actions[self.num_rovers :].ravel().take(self._tower_cells)  # [rovers, B]
        message = self.extra_view("message").reshape(self.num_rovers, self.num_messages, -1)
        np.equal(heard[:, None], np.arange(self.num_messages)[:, None], out=message)
        self._see_rovers()

    def reward(self):
        off = squared_length(self.pos[:, : self.num_rovers] - self.goal_of_rover)  # [rovers, B]
        per_rover = 10.0 * (off < 1.5 * (0.075 + 0.04)) - off
        return np.concatenate([per_rover, per_rover.ravel().take(self._rover_cells)])

    def get_state(self):
        return super().get_state() | {
            "rover_of_tower": self.rover_of_tower.copy(),
            "goal_of_tower": self.goal_of_tower.copy(),
        }

    def set_state(self, state):
        self.rover_of_tower = np.array(state["rover_of_tower"], dtype=np.int64)
        self.goal_of_tower = np.array(state["goal_of_tower"], dtype=np.int64)
        return super().set_state(state)

    def appearance(self, env):
        looks, half = super().appearance(env), self.num_rovers
        for tower in range(half):
            rover, hue = self.rover_of_tower[tower, env], tower / half
            color = tuple(0.55 + 0.35 * np.cos(2 * np.pi * (hue + shift)) for shift in (0, 1 / 3, 2 / 3))
            looks[rover]["color"] = looks[half + tower]["color"] = color  # a pair has a colour of its own
            looks[rover]["goal"] = 2 * half + self.goal_of_tower[tower, env]
            message = self.extra_view("message").reshape(half, self.num_messages, -1)[rover, :, env]
            looks[half + tower]["message"] = int(message.argmax()) if message.any() else None
        return looks


# mpe2's tasks, with mpe2's physics.


class SimpleTag(ParticleTask):
    """Three slow predators hunt a fast prey among two obstacles."""

    mpe2_physics = True
    landmark_range = 0.9
    prey = 3

    def make_bodies(self):
        predator = {"moves": True, "size": 0.075, "force": 3.0, "max_speed": 1.0, "collides": True, "color": RED}
        return [
            *[Body(f"adversary_{k}", **predator) for k in range(3)],
            Body("agent_0", moves=True, size=0.05, force=4.0, max_speed=1.3, collides=True, color=GREEN),
            *[Body(f"landmark_{k}", size=0.2, collides=True) for k in range(2)],
        ]

    def observation(self, me):
        prey_velocity = [] if me == self.prey else self.velocity(self.prey)
        places = self.relative(self.landmarks, me) + self.relative(self.others(me), me)
        return self.velocity(me) + self.position(me) + places + prey_velocity

    def reward(self):
        catching = [k for k, (_, second) in enumerate(self.pairs) if second == self.prey]
        caught = 10.0 * np.add.reduce(self.pair_squared[catching] < self._touch_squared[catching], axis=0)
        # The prey pays for leaving the field, per coordinate: 0 below 0.9, then 10 (x - 0.9), from 1 on e^(2x-2) <= 10.
        away = np.abs(self.pos[:, self.prey])
        fence = np.where(away < 1, np.maximum(10 * away - 9, 0), np.minimum(np.exp(2 * away - 2), 10))
        return np.stack([caught, caught, caught, -caught - fence[0] - fence[1]])


class SimpleSpread(ParticleTask):
    """Three agents cover three landmarks; half of the reward is shared coverage, half the own collisions."""

    mpe2_physics = True

    def make_bodies(self):
        agents = [Body(f"agent_{k}", moves=True, size=0.15, collides=True, color=BLUE) for k in range(3)]
        return agents + [Body(f"landmark_{k}") for k in range(3)]

    def observation(self, me):
        places = self.relative(self.landmarks, me) + self.relative(self.others(me), me)
        return self.velocity(me) + self.position(me) + places + self.nothing(4)

    def reward(self):
        to_landmarks = length(self.pos[:, :3, None] - self.pos[:, None, 3:])  # [agents, landmarks, B]
        uncovered = np.add.reduce(np.minimum.reduce(to_landmarks, axis=0), axis=0)
        touching = (self.pair_squared < self._touch_squared).astype(float)  # pairs (0, 1), (0, 2), (1, 2)
        collisions = touching[[0, 0, 1]] + touching[[1, 2, 2]]
        return -0.5 * uncovered - 0.5 * collisions


class SimplePush(KeepAway):
    """mpe2's keep-away: the adversary does not see which landmark is the goal, and is paid for being near it."""

    mpe2_physics = True
    landmark_range = 1.0

    def make_bodies(self):
        agents = [Body("adversary_0", moves=True, collides=True, color=RED)]
        agents += [Body("agent_0", moves=True, collides=True, color=GREEN)]
        return agents + [Body(f"landmark_{k}", color=color) for k, color in enumerate(self.landmark_colors)]

    def observation(self, me):
        if me == 0:
            return self.velocity(me) + self.relative(self.landmarks, me) + self.relative(self.others(me), me)
        return super().observation(me)

    def reward(self):
        adversary, agent = length(self.pos[:, :2] - self.extra_view("goal_position")[:, None])
        return np.stack([agent - adversary, -agent])


class SimpleSpeakerListener(SpeakerListenerTask):
    """mpe2's cooperative communication: the negative squared distance of listener and goal, once."""

    mpe2_physics = True

    def reward(self):
        return -squared_length(self.listener_to_goal())[None]


class SimpleAdversary(ParticleTask):
    """Two agents know which of two landmarks is the goal and hide it from an adversary who wants to be there."""

    mpe2_physics = True
    extra_rows: ClassVar = {"goal_position": 2}

    def make_bodies(self):
        body = {"moves": True, "size": 0.15}
        agents = [Body("adversary_0", color=RED, **body)] + [Body(f"agent_{k}", color=BLUE, **body) for k in range(2)]
        return agents + [Body(f"landmark_{k}", size=0.08) for k in range(2)]

    def observation(self, me):
        places = self.relative(self.landmarks, me) + self.relative(self.others(me), me)
        if me == 0:
            return places
        return self.goal_from(me) + places

    def reset_task(self):
        self.goal = self.rng.integers(2, size=self.num_envs)
        self.restore_task()

    def restore_task(self):
        self.extra_view("goal_position")[...] = self.goal_position()

    def reward(self):
        adversary, *agents = length(self.pos[:, :3] - self.extra_view("goal_position")[:, None])
        good = adversary - np.minimum(*agents)
        return np.stack([-adversary, good, good])

    def appearance(self, env):
        looks = super().appearance(env)
        looks[1]["goal"] = looks[2]["goal"] = 3 + self.goal[env]
        return looks


# Finding a task by its id.

TASKS: dict[str, type[ParticleTask]] = {
    "keep_away": KeepAway,
    "keep_away_maac": KeepAwayMAAC,
    "cooperative_communication": CooperativeCommunication,
    "cooperative_navigation": CooperativeNavigation,
    "simple_tag": SimpleTag,
    "simple_spread": SimpleSpread,
    "simple_push": SimplePush,
    "simple_speaker_listener": SimpleSpeakerListener,
    "simple_adversary": SimpleAdversary,
}
TASK_IDS = [*list(TASKS)[:4], "rover_tower_8", "rover_tower_12", "rover_tower_16", *list(TASKS)[4:]]


def is_task_id(task_id: str) -> bool:
    return task_id in TASKS or re.fullmatch(r"rover_tower_\d+", task_id) is not None


def unknown_id_message(task_id: str, known: list[str]) -> str:
    nearest = difflib.get_close_matches(task_id, known, n=1, cutoff=0.4)
    hint = f"; did you mean {nearest[0]!r}?" if nearest else "."
    return f"unknown task {task_id!r}{hint} Known tasks: {', '.join(known)}"


def task_class(task_id: str):
    """The class of a task, called with (num_envs, seed)."""
    if task_id in TASKS:
        return TASKS[task_id]
    if is_task_id(task_id):
        return functools.partial(RoverTower, num_agents=int(task_id.rsplit("_", 1)[1]))
    raise TaskError(unknown_id_message(task_id, TASK_IDS))


def make_task(task_id: str, num_envs: int, seed: int | None = None) -> ParticleTask:
    return task_class(task_id)(num_envs, seed)


def parallel_env(task_id: str, render_mode: str | None = None) -> "ParticleParallelEnv":
    """A task by its id as a PettingZoo parallel environment."""
    return ParticleParallelEnv(task_class(task_id), render_mode, task_id)


class ParticleParallelEnv(ParallelEnv):
    """One copy of a task behind PettingZoo's parallel API."""

    def __init__(self, make, render_mode: str | None = None, name: str = "particle_task"):
        if render_mode not in (None, "human", "rgb_array"):
            raise TaskError(f"render_mode must be 'human', 'rgb_array' or None, got {render_mode!r}")
        self.metadata = {
            "render_modes": ["human", "rgb_array"],
            "name": name,
            "render_fps": 10,
            "is_parallelizable": True,
        }
        self.task: ParticleTask = make(1)
        self.render_mode = render_mode
        self.possible_agents = list(self.task.agents)
        self.agents: list[str] = []
        self._index = {agent: k for k, agent in enumerate(self.possible_agents)}
        self.observation_spaces = {
            agent: spaces.Box(-np.inf, np.inf, (int(size),), np.float32)
            for agent, size in zip(self.possible_agents, self.task.obs_sizes)
        }
        self.action_spaces = {
            agent: spaces.Discrete(int(number)) for agent, number in zip(self.possible_agents, self.task.num_actions)
        }
        self._canvas = None

    def observation_space(self, agent: str) -> spaces.Box:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Discrete:
        return self.action_spaces[agent]

    def _by_agent(self, obs: np.ndarray) -> dict[str, np.ndarray]:
        """Observations [1, agents, widest] without their padding."""
        return {agent: obs[0, k, : self.task.obs_sizes[k]] for agent, k in self._index.items()}

    def reset(self, seed: int | None = None, options: dict | None = None):
        self.agents = list(self.possible_agents)
        obs = self.task.reset(seed)
        if self.render_mode == "human":
            self.render()
        return self._by_agent(obs), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, int]):
        if not self.agents:
            raise TaskError("the episode has ended, or never began: call reset() before step()")
        missing = [agent for agent in self.agents if agent not in actions]
        if missing:
            raise TaskError(f"no action for {', '.join(missing)}")
        joint = np.array([[actions[agent] for agent in self.possible_agents]])
        rewards = self.task.advance(joint)
        obs = self._by_agent(self.task.observe())
        over = self.task.time >= self.task.episode_length
        agents = self.agents
        if over:
            self.agents = []
        if self.render_mode == "human":
            self.render()
        return (
            obs,
            {agent: float(rewards[0, self._index[agent]]) for agent in agents},
            {agent: False for agent in agents},
            {agent: over for agent in agents},
            {agent: {} for agent in agents},
        )

    def state(self) -> np.ndarray:
        """All agents' observations, one after the other."""
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


class Canvas:
    """Draws one environment of a batch, into an array or a window."""

    side, header = 700, 36  # pixels: of the picture, and of the strip for its title
    fps = 10

    def __init__(self, title: str, window: bool = False):
        import pygame  # here, so that training needs no graphics library

        self.pygame, self.window = pygame, window
        pygame.font.init()
        self.font, self.small = pygame.font.Font(None, 26), pygame.font.Font(None, 20)
        if window:
            pygame.display.init()
            self.surface = pygame.display.set_mode((self.side, self.side))
            pygame.display.set_caption(title)
            self.clock = pygame.time.Clock()
        else:
            self.surface = pygame.Surface((self.side, self.side))
        self.title = title

    def draw(self, task: ParticleTask, env: int) -> np.ndarray | None:
        """An image [side, side, 3] uint8; nothing for a window, which shows it."""
        pygame, surface, bodies = self.pygame, self.surface, task.bodies
        places, looks = task.pos[:, :, env].T, task.appearance(env)
        # The field is +-1; zoom out in steps when somebody leaves it, so that the picture does not breathe.
        outermost = max(np.abs(places[k]).max() + body.size for k, body in enumerate(bodies))
        scale = (self.side - self.header) / 2 / max(1.25, np.ceil(4 * outermost) / 4)
        middle = np.array([self.side, self.side + self.header]) / 2
        pixels = middle + places * scale * np.array([1, -1])  # y points up

        surface.fill(WHITE)
        pygame.draw.rect(surface, (225, 225, 225), (*(middle - scale), 2 * scale, 2 * scale), 2)
        followers: dict[int, list] = {}  # who is after which landmark
        for k, look in enumerate(looks):
            if look["goal"] is not None:
                pygame.draw.line(surface, self._ink(look["color"]), tuple(pixels[k]), tuple(pixels[look["goal"]]), 2)
                followers.setdefault(look["goal"], []).append(self._ink(look["color"]))
        for landmark, inks in followers.items():  # a ring in the colour of each
            place, inner = tuple(pixels[landmark]), bodies[landmark].size * scale + 4
            for n, ink in reversed(list(enumerate(inks))):
                pygame.draw.circle(surface, ink, place, inner + 3 + 5 * n)
                pygame.draw.circle(surface, WHITE, place, inner + 5 * n)
        # Small bodies lie on large ones and agents on landmarks, so that nobody is hidden.
        for k in sorted(range(len(bodies)), key=lambda k: (-bodies[k].size, bodies[k].is_agent)):
            self._draw_body(bodies[k], self._ink(looks[k]["color"]), *pixels[k], max(bodies[k].size * scale, 4))
        for place, look in zip(pixels, looks):
            if look["message"] is not None:
                self._write(self.font, chr(ord("A") + look["message"]), tuple(place), WHITE, BLACK)
        self._write_labels(pixels, [body.size * scale for body in bodies], [look["label"] for look in looks])
        title = f"{self.title}   step {task.time} of {task.episode_length}"
        self._write(self.font, title, (self.side / 2, self.header / 2))
        if self.window:
            pygame.event.pump()  # else the system takes the window for dead
            pygame.display.flip()
            self.clock.tick(self.fps)
            return None
        return pygame.surfarray.array3d(surface).transpose(1, 0, 2).copy()

    def _draw_body(self, body: Body, ink: tuple, x: float, y: float, radius: float) -> None:
        """What moves or blocks the way is round, who cannot move is a square, a mere place is a diamond."""
        if body.moves or (body.collides and not body.is_agent):
            self.pygame.draw.circle(self.surface, ink, (x, y), radius)
            self.pygame.draw.circle(self.surface, BLACK, (x, y), radius, 1)
            return
        turns = np.pi / 2 * np.arange(4) + (np.pi / 4 if body.is_agent else 0)
        reach = radius * (np.sqrt(2) if body.is_agent else 1.2)
        corners = [(x + reach * np.cos(turn), y + reach * np.sin(turn)) for turn in turns]
        self.pygame.draw.polygon(self.surface, ink, corners)
        self.pygame.draw.polygon(self.surface, BLACK, corners, 1)

    def _write_labels(self, pixels: np.ndarray, radii: list[float], labels: list[str]) -> None:
        """Each label below, above or beside its body: where it covers least, and inside the picture."""
        picture = self.surface.get_rect()
        taken = [self.pygame.Rect(x - r, y - r, 2 * r, 2 * r) for (x, y), r in zip(pixels, radii)]
        for (x, y), radius, label in zip(pixels, radii, labels):
            if not label:
                continue
            box = self.pygame.Rect((0, 0), self.small.size(label))
            down, right = radius + box.height / 2 + 3, radius + box.width / 2 + 5
            spots = [(0, down), (0, -down), (right, 0), (-right, 0), (0, 2 * down), (0, -2 * down)]
            boxes = [box.move(x + dx - box.width / 2, y + dy - box.height / 2).clamp(picture) for dx, dy in spots]
            best = min(boxes, key=lambda spot: len(spot.collidelistall(taken)))
            self._write(self.small, label, best.center)
            taken.append(best)

    @staticmethod
    def _ink(color: tuple) -> tuple[int, ...]:
        return tuple(int(255 * min(part, 1.0)) for part in color)

    def _write(self, font, text: str, center: tuple, color: tuple = INK, halo: tuple = WHITE) -> None:
        image, edge = font.render(text, True, color), font.render(text, True, halo)
        box = image.get_rect(center=center)
        for dx, dy in itertools.product((-1, 0, 1), repeat=2):
            self.surface.blit(edge, box.move(dx, dy))
        self.surface.blit(image, box)

    def close(self) -> None:
        if self.window:
            self.pygame.display.quit()
