"""The batched tasks: against independent references, and what every batch must do.

The references are known scores of random play, a slow implementation for one environment in plain Python, and
mpe2 itself. Every batch must end and restart episodes, follow its seed, keep its environments independent, save and
restore its state, and refuse wrong input.
"""

import importlib
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pettingzoo.test import parallel_api_test

from particle_envs import TASK_IDS, TASKS, ParticleParallelEnv, TaskError, make_task
from particle_envs.world import Entity, GoalTask, length

MPE2_IDS = [task_id for task_id in TASK_IDS if task_id.startswith("simple")]
COLLIDING_IDS = ["keep_away", "cooperative_navigation", "simple_tag", "simple_spread", "simple_push"]


def random_actions(task, rng, steps=25):
    """Uniformly random joint actions [steps, B, agents]."""
    return rng.integers(task.num_actions, size=(steps, task.num_envs, task.num_agents))


def crowd(task, factor=0.25):
    """Move the agents towards the middle, so that they collide soon."""
    task.pos[:, : task.num_agents] *= factor
    return task.set_state(task.get_state())


# Known scores


@pytest.mark.parametrize(
    ("task_id", "scores", "errors"),
    [
        ("keep_away", [116.9, -26.5], [1.3, 0.27]),
        ("cooperative_communication", [-55.9] * 2, [0.58] * 2),
        ("cooperative_navigation", [-179.0] * 3, [1.06] * 3),
        ("rover_tower_8", [-7.7] * 8, [1.9] * 8),
        ("rover_tower_12", [-7.7] * 12, [1.9] * 12),
        ("rover_tower_16", [-7.7] * 16, [1.9] * 16),
    ],
)
def test_scores_of_random_play(task_id, scores, errors):
    task = make_task(task_id, num_envs=2000, seed=0)
    task.reset()
    rng = np.random.default_rng([0, 1])  # not the stream that draws the positions
    returns = sum(task.step(actions)[1].astype(float) for actions in random_actions(task, rng))
    assert (np.abs(returns.mean(axis=0) - scores) < 3 * np.array(errors)).all(), returns.mean(axis=0)


# A slow reference for the paper's tasks: one environment, one entity at a time, plain floats

DIRECTION = [(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1)]


class Thing:
    def __init__(self, place, size, force=None, mass=1.0, top_speed=None, solid=False):
        self.x, self.y = float(place[0]), float(place[1])
        self.vx = self.vy = 0.0
        self.size, self.force, self.mass, self.top_speed, self.solid = size, force, mass, top_speed, solid

    def seen_from(self, other):
        return [self.x - other.x, self.y - other.y]

    def distance(self, other):
        return math.hypot(self.x - other.x, self.y - other.y)


class PlainEnv:
    """Starts in the state of environment `env` of a batch and computes everything that follows by itself."""

    def __init__(self, task, env):
        self.contacts = 0
        self.place = lambda entity: task.pos[:, entity, env]
        self.set_up(task, env)
        for agent, velocity in zip(self.agents[task.movers], task.vel[:, :, env].T):
            agent.vx, agent.vy = map(float, velocity)

    def step(self, actions):
        push = [[0.0, 0.0] for _ in self.agents]
        for k, agent in enumerate(self.agents):
            if agent.force is not None:
                push[k] = [agent.mass * agent.force * part for part in DIRECTION[actions[k]]]
        for a, first in enumerate(self.agents):
            for b, second in enumerate(self.agents[:a]):
                if not (first.solid and second.solid):
                    continue
                gap = first.distance(second) - first.size - second.size
                self.contacts += gap < 0
                depth = 0.001 * math.log1p(math.exp(-gap / 0.001)) if gap > -0.5 else -gap
                ratio = second.mass / first.mass  # as in MAAC's fork
                for axis, part in enumerate(first.seen_from(second)):
                    push[a][axis] += ratio * 100 * depth * part / first.distance(second)
                    push[b][axis] -= 100 * depth * part / first.distance(second) / ratio
        for agent, (fx, fy) in zip(self.agents, push):
            if agent.force is None:
                continue
            agent.vx = 0.75 * agent.vx + 0.1 * fx / agent.mass
            agent.vy = 0.75 * agent.vy + 0.1 * fy / agent.mass
            speed = math.hypot(agent.vx, agent.vy)
            if agent.top_speed is not None and speed > agent.top_speed:
                agent.vx, agent.vy = agent.vx * agent.top_speed / speed, agent.vy * agent.top_speed / speed
            agent.x += 0.1 * agent.vx
            agent.y += 0.1 * agent.vy
        self.listen(actions)
        return self.rewards()

    def listen(self, actions):
        pass


class PlainKeepAway(PlainEnv):
    def set_up(self, task, env):
        self.pusher = Thing(self.place(0), 0.05, force=5.0, mass=5.0, top_speed=2.0, solid=True)
        self.reacher = Thing(self.place(1), 0.05, force=5.0, top_speed=2.0, solid=True)
        self.agents = [self.pusher, self.reacher]
        self.landmarks = [Thing(self.place(2), 0.05), Thing(self.place(3), 0.05)]
        self.goal_number = int(task.goal[env])
        self.goal = self.landmarks[self.goal_number]

    def observations(self):
        seen = []
        for me, other in ((self.pusher, self.reacher), (self.reacher, self.pusher)):
            obs = [me.vx, me.vy, *self.goal.seen_from(me)]
            if me is self.reacher:
                obs += [0.25, 0.75, 0.25] if self.goal_number == 0 else [0.25, 0.25, 0.75]
            for landmark in self.landmarks:
                obs += landmark.seen_from(me)
            if me is self.reacher:
                obs += [0.1, 0.9, 0.1, 0.1, 0.1, 0.9]
            seen.append(obs + other.seen_from(me))
        return seen

    def rewards(self):
        off = self.reacher.distance(self.goal)
        return [5 * off - 0.5 * self.pusher.distance(self.reacher), -off]


class PlainCommunication(PlainEnv):
    def set_up(self, task, env):
        self.listener = Thing(self.place(1), 0.075, force=5.0)
        self.agents = [Thing(self.place(0), 0.075), self.listener]
        self.landmarks = [Thing(self.place(2 + k), 0.04) for k in range(3)]
        self.goal_number = int(task.goal[env])
        self.heard = [0.0, 0.0, 0.0]

    def listen(self, actions):
        self.heard = [0.0, 0.0, 0.0]
        self.heard[actions[0]] = 1.0

    def observations(self):
        color = [0.15, 0.15, 0.15]
        color[self.goal_number] = 0.65
        places = [part for landmark in self.landmarks for part in landmark.seen_from(self.listener)]
        return [color, [self.listener.vx, self.listener.vy, *places, *self.heard]]

    def rewards(self):
        raw = -self.listener.distance(self.landmarks[self.goal_number])  # of the speaker, and of the listener
        return [raw + raw, raw + raw]


class PlainNavigation(PlainEnv):
    def set_up(self, task, env):
        self.agents = [Thing(self.place(k), 0.15, force=5.0, solid=True) for k in range(3)]
        self.landmarks = [Thing(self.place(3 + k), 0.05) for k in range(3)]

    def observations(self):
        seen = []
        for me in self.agents:
            obs = [me.vx, me.vy]
            for thing in [*self.landmarks, *self.agents]:
                if thing is not me:
                    obs += thing.seen_from(me)
            seen.append([*obs, 0.0, 0.0, 0.0, 0.0])
        return seen

    def rewards(self):
        shared = 0.0
        for me in self.agents:
            for landmark in self.landmarks:
                shared -= min(agent.distance(landmark) for agent in self.agents)
            for agent in self.agents:  # including itself
                shared += min(agent.distance(me) - 0.3, 0.0)
        return [shared, shared, shared]


class PlainRoverTower(PlainEnv):
    def set_up(self, task, env):
        self.half = task.num_agents // 2
        self.rovers = [Thing(self.place(k), 0.075, force=2.25, top_speed=1.0) for k in range(self.half)]
        towers = [Thing(self.place(self.half + k), 0.075) for k in range(self.half)]
        self.agents = self.rovers + towers
        landmarks = [Thing(self.place(2 * self.half + k), 0.04) for k in range(6)]
        self.rover_of = [int(rover) for rover in task.rover_of_tower[:, env]]
        self.goal_of = [landmarks[int(goal)] for goal in task.goal_of_tower[:, env]]
        assert sorted(self.rover_of) == list(range(self.half))
        self.said = [None] * self.half

    def listen(self, actions):
        self.said = [int(word) for word in actions[self.half :]]

    def observations(self):
        def one_hot(index, size):
            return [float(k == index) for k in range(size)]

        seen = []
        for k, rover in enumerate(self.rovers):
            tower = self.rover_of.index(k)
            words = one_hot(self.said[tower], 5)
            seen.append([*one_hot(tower, self.half), *words, rover.x, rover.y, rover.vx, rover.vy])
        for rover, goal in zip(self.rover_of, self.goal_of):
            seen.append([*one_hot(rover, self.half), self.rovers[rover].x, self.rovers[rover].y, goal.x, goal.y])
        return seen

    def rewards(self):
        of_tower = []
        for rover, goal in zip(self.rover_of, self.goal_of):
            squared = self.rovers[rover].distance(goal) ** 2
            of_tower.append(-squared + (10.0 if squared < 0.1725 else 0.0))
        return [of_tower[self.rover_of.index(k)] for k in range(self.half)] + of_tower


PLAIN = {
    "keep_away": PlainKeepAway,
    "cooperative_communication": PlainCommunication,
    "cooperative_navigation": PlainNavigation,
    "rover_tower_4": PlainRoverTower,
    "rover_tower_8": PlainRoverTower,
    "rover_tower_18": PlainRoverTower,
}


@pytest.mark.parametrize("task_id", PLAIN)
@pytest.mark.parametrize("crowded", [False, True], ids=["as reset", "crowded"])
def test_paper_tasks_equal_a_plain_reference(task_id, crowded):
    task = make_task(task_id, num_envs=30, seed=0)
    obs = task.reset()
    if crowded:
        task.vel[:, :, ::2] = np.random.default_rng([0, 2]).uniform(-3, 3, task.vel[:, :, ::2].shape)  # over the limits
        obs = crowd(task, 0.1)
    plain = [PLAIN[task_id](task, env) for env in range(30)]

    def assert_same_observations(obs, t):
        for env, reference in enumerate(plain):
            expected = reference.observations()
            assert [len(part) for part in expected] == task.obs_sizes.tolist()
            for k, part in enumerate(expected):
                np.testing.assert_allclose(obs[env, k, : len(part)], part, rtol=0, atol=1e-5, err_msg=f"{t=} {env=}")

    assert_same_observations(obs, t=0)
    prizes = 0
    for t, actions in enumerate(random_actions(task, np.random.default_rng([0, 1])), start=1):
        _, rewards, _, _, obs = task.step(actions)
        expected = [reference.step(joint) for reference, joint in zip(plain, actions)]
        np.testing.assert_allclose(rewards, expected, rtol=0, atol=1e-5, err_msg=f"{t=}")
        assert_same_observations(obs, t)
        prizes += int((rewards > 0).sum())
    if task_id.startswith("rover_tower"):
        assert prizes > 0
    if crowded and task_id in COLLIDING_IDS:
        assert sum(reference.contacts for reference in plain) > 20


def test_starts_are_drawn_as_the_tasks_say():
    """Positions, goals and pairs are uniform; velocities and messages are zero."""
    for task_id in TASK_IDS:
        task = make_task(task_id, num_envs=3000, seed=0)
        task.reset()
        for _ in range(3):
            task.advance(np.ones((3000, task.num_agents), dtype=int))
        task.reset()
        inner = {"keep_away": 0.8, "simple_tag": 0.9}.get(task_id, 1.0)
        for entity in range(len(task.entities)):
            edge = 1.0 if entity < task.num_agents else inner
            place = task.pos[:, entity]
            assert 0.99 * edge < np.abs(place).max() <= edge, (task_id, entity)
            assert np.abs(place.mean(axis=1)).max() < 4 * edge / math.sqrt(3 * 3000)
            assert np.abs(place.std(axis=1) - edge / math.sqrt(3)).max() < 0.02
        assert not task.vel.any()
        assert not task.blocks.get("message", np.zeros(1)).any()

    for task_id, choices in [("keep_away", 2), ("cooperative_communication", 3), ("simple_adversary", 2)]:
        task = make_task(task_id, num_envs=3000, seed=0)
        task.reset()
        counts = np.bincount(task.goal, minlength=choices)
        assert len(counts) == choices and np.abs(counts / 3000 - 1 / choices).max() < 0.04
    task = make_task("rover_tower_8", num_envs=3000, seed=0)
    task.reset()
    assert (np.sort(task.rover_of_tower, axis=0) == np.arange(4)[:, None]).all()
    for tower in range(4):
        assert np.abs(np.bincount(task.rover_of_tower[tower], minlength=4) / 3000 - 1 / 4).max() < 0.04
        assert np.abs(np.bincount(task.goal_of_tower[tower], minlength=6) / 3000 - 1 / 6).max() < 0.04


# mpe2 itself, put into the same state


def put_into_mpe2(raw, task, env):
    for k, entity in enumerate(raw.world.entities):
        entity.state.p_pos = task.pos[:, k, env].copy()
        entity.state.p_vel = np.zeros(2)
        if entity.movable:
            entity.state.p_vel = task.vel[:, k - task.movers.start, env].copy()
    if task.drawn != ("goal",):
        return
    goal = raw.world.landmarks[task.goal[env]]
    if task.env_id == "simple_speaker_listener":
        raw.world.agents[0].goal_b = goal
    else:
        for agent in raw.world.agents:
            agent.goal_a = goal
    if task.env_id == "simple_push":  # the agent has the color of its goal
        raw.world.agents[1].color = np.full(3, 0.25)
        raw.world.agents[1].color[task.goal[env] + 1] += 0.5


@pytest.mark.parametrize("task_id", MPE2_IDS)
def test_mpe2_tasks_equal_mpe2(task_id):
    copies = 200
    task = make_task(task_id, num_envs=copies, seed=0)
    task.reset()
    rng = np.random.default_rng([0, 1])
    task.vel[:, :, copies // 2 :] = rng.uniform(-1, 1, task.vel[:, :, copies // 2 :].shape)  # half start in motion
    task.pos[:, : task.num_agents, ::4] *= 0.2  # and a quarter close together
    start = task.get_state()
    task.set_state(start)
    actions = random_actions(task, rng)  # [25, B, agents]
    played = [(task.observe(), None, None)]
    contacts = 0
    for joint in actions:
        contacts += task.touching().sum() if task.pairs else 0
        _, rewards, terminated, truncated, final_obs = task.step(joint)
        assert not terminated.any()
        played.append((final_obs, rewards, truncated))

    version = 4 if task_id == "simple_speaker_listener" else 3
    raw = importlib.import_module(f"mpe2.{task_id}_v{version}").raw_env()
    assert raw.possible_agents == task.agents
    assert [raw.action_space(agent).n for agent in task.agents] == task.num_actions.tolist()
    assert [raw.observation_space(agent).shape[0] for agent in task.agents] == task.obs_sizes.tolist()
    task.set_state(start)
    for env in range(copies):
        raw.reset(seed=0)
        put_into_mpe2(raw, task, env)
        for t, (obs, rewards, truncated) in enumerate(played):
            if t > 0:
                for action in actions[t - 1, env]:  # one call per agent; the world steps after the last one
                    raw.step(action)
                expected = [raw.rewards[agent] for agent in task.agents]
                np.testing.assert_allclose(rewards[env], expected, rtol=0, atol=1e-5, err_msg=f"{env=} {t=}")
                assert set(raw.truncations.values()) == {bool(truncated[env])}
                assert not any(raw.terminations.values())
            seen = np.zeros(obs[env].shape)
            for k, agent in enumerate(task.agents):
                seen[k, : task.obs_sizes[k]] = raw.observe(agent)
            np.testing.assert_allclose(obs[env], seen, rtol=0, atol=1e-5, err_msg=f"{env=} {t=}")
    assert played[-1][2].all() and not played[-2][2].any()
    if task_id in COLLIDING_IDS:
        assert contacts > 50
    if task_id == "simple_tag":
        catches = sum((rewards[:, 0] > 0).sum() for _, rewards, _ in played[1:])
        assert catches > 50
        assert np.abs(task.pos[:, 3]).max() > 0.9  # the prey has left the field


# What every batch must do


@pytest.mark.parametrize("task_id", TASK_IDS)
def test_shapes_ends_and_true_final_observations(task_id):
    task, twin = make_task(task_id, num_envs=7, seed=3), make_task(task_id, num_envs=7, seed=3)
    assert task.env_id == task_id and task.episode_length == 25
    assert len(task.agents) == len(task.obs_sizes) == len(task.num_actions) == task.num_agents
    shape = (7, task.num_agents, int(max(task.obs_sizes)))
    padding = np.arange(shape[2]) >= task.obs_sizes[:, None]  # [agents, widest]
    obs = task.reset()
    np.testing.assert_array_equal(obs, twin.reset())
    assert obs.shape == shape and obs.dtype == np.float32
    returned = [(obs, obs.copy())]
    for t, actions in enumerate(random_actions(task, np.random.default_rng(0), steps=55), start=1):
        unchanged = actions.copy()
        obs, rewards, terminated, truncated, final_obs = task.step(actions)
        np.testing.assert_array_equal(actions, unchanged)
        for array in (obs, final_obs):
            assert array.shape == shape and array.dtype == np.float32
            assert not array[:, padding].any() and np.isfinite(array).all()
        assert rewards.shape == (7, task.num_agents) and rewards.dtype == np.float32
        assert terminated.shape == truncated.shape == (7,) and terminated.dtype == truncated.dtype == bool
        assert not terminated.any() and (truncated == (t % 25 == 0)).all()
        np.testing.assert_array_equal(rewards, twin.advance(actions))
        np.testing.assert_array_equal(final_obs, twin.observe())
        np.testing.assert_array_equal(obs, twin.reset() if t % 25 == 0 else final_obs)
        assert np.array_equal(obs, final_obs) == (t % 25 != 0)
        returned += [(array, array.copy()) for array in (obs, rewards, final_obs)]
    for array, copy in returned:  # later steps do not write into what was returned
        np.testing.assert_array_equal(array, copy)


def play(task, actions):
    """obs, rewards, terminated, truncated and final_obs, each with the steps first."""
    return [np.stack(parts) for parts in zip(*[task.step(joint) for joint in actions])]


def assert_identical(one, other):
    for left, right in zip(one, other, strict=True):
        np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("task_id", TASK_IDS)
def test_the_seed_decides_everything(task_id):
    def trajectory(seed, reset_seed=None, actions_seed=0):
        task = make_task(task_id, num_envs=3, seed=seed)
        first = task.reset(reset_seed)
        return [first, *play(task, random_actions(task, np.random.default_rng(actions_seed), steps=55))]

    one = trajectory(5)
    assert_identical(trajectory(5), one)
    assert_identical(trajectory(6, reset_seed=5), one)
    other = trajectory(6)
    assert not np.array_equal(one[0], other[0]) and not np.array_equal(one[2], other[2])
    assert not np.array_equal(one[0][0], one[0][1])  # the environments of a batch differ, too
    other = trajectory(5, actions_seed=1)  # actions do not influence how the next episode starts
    np.testing.assert_array_equal(one[1][24], other[1][24])
    assert not np.array_equal(one[2][:24], other[2][:24])


@pytest.mark.parametrize("task_id", TASK_IDS)
def test_environments_are_independent(task_id):
    """A batch of 40 plays exactly as 40 batches of one."""
    task = make_task(task_id, num_envs=40, seed=0)
    task.reset()
    crowd(task, 0.08)
    start, actions = task.get_state(), random_actions(task, np.random.default_rng([0, 1]))
    contacts = 0
    obs, rewards = [task.observe()], []
    for joint in actions:
        contacts += task.touching().sum() if task.pairs else 0
        rewards.append(task.advance(joint))
        obs.append(task.observe())
    if task_id in COLLIDING_IDS:
        assert contacts > 40

    single = make_task(task_id, num_envs=1, seed=7)
    for k in range(40):
        state = {name: value[..., k : k + 1] for name, value in start.items() if isinstance(value, np.ndarray)}
        np.testing.assert_array_equal(single.set_state({**state, "time": 0})[0], obs[0][k])
        for t, joint in enumerate(actions):
            np.testing.assert_array_equal(single.advance(joint[k : k + 1])[0], rewards[t][k])
            np.testing.assert_array_equal(single.observe()[0], obs[t + 1][k])


@pytest.mark.parametrize("task_id", TASK_IDS)
def test_a_restored_state_continues_bit_for_bit_into_the_next_episodes(task_id):
    rng = np.random.default_rng(0)
    task = make_task(task_id, num_envs=4, seed=2)
    task.reset()
    crowd(task)
    play(task, random_actions(task, rng, steps=17))
    state = task.get_state()
    assert all(isinstance(value, np.ndarray | int | str) for value in state.values())
    saved = {name: value.copy() if isinstance(value, np.ndarray) else value for name, value in state.items()}
    obs, actions = task.observe(), random_actions(task, rng, steps=60)
    expected = play(task, actions)

    other = make_task(task_id, num_envs=4, seed=99)
    np.testing.assert_array_equal(other.set_state(state), obs)
    assert_identical(play(other, actions), expected)
    for name, value in saved.items():  # neither task has written into the saved state
        np.testing.assert_array_equal(state[name], value)

    other.set_state({name: value for name, value in state.items() if name != "rng"})
    without_rng = play(other, actions)
    assert_identical([part[:7] for part in without_rng], [part[:7] for part in expected])
    assert not np.array_equal(without_rng[0][8], expected[0][8])  # its own generator draws the next episode
    assert json.loads(state["rng"])["bit_generator"] == "PCG64"
    with pytest.raises(TaskError, match="shape"):
        make_task(task_id, num_envs=3).set_state(state)


def test_a_state_can_be_edited():
    """Blocks that follow from positions and goals are filled in again."""
    task = make_task("keep_away", num_envs=2, seed=0)
    task.reset()
    state = task.get_state()
    task.goal[:] = 0, 1
    task.pos[:, 2:] = np.array([[0.5, -0.5], [0.25, -0.25]])[:, :, None]  # both landmarks, x and y
    task.pos[:, 1] = 0.0
    obs = task.set_state(task.get_state())
    np.testing.assert_array_equal(obs[:, 1, 2:4], np.float32([[0.5, 0.25], [-0.5, -0.25]]))
    np.testing.assert_array_equal(obs[:, 1, 4:7], np.float32([[0.25, 0.75, 0.25], [0.25, 0.25, 0.75]]))
    task.set_state(state)
    goal = state["goal"].copy()
    task.goal[:] = 1 - goal  # edits the task, not the saved state
    np.testing.assert_array_equal(state["goal"], goal)


class Escort(GoalTask):
    """A task as a user may write it. Only one of its agents has a speed limit."""

    def make_entities(self):
        agents = [Entity("guest_0", moves=True, force=2.0, max_speed=0.5), Entity("guard_0", moves=True)]
        return [*agents, Entity("landmark_0"), Entity("landmark_1")]

    def observation(self, me):
        return (self.goal_from(me) if me == 0 else []) + self.velocity(me) + self.relative(self.others(me), me)

    def reward(self):
        guest, guard = self.pos[:, 0], self.pos[:, 1]
        return np.stack([-length(guest - self.blocks["goal_position"]), -length(guard - guest)])


def test_a_task_of_your_own(monkeypatch):
    monkeypatch.setitem(TASKS, "escort", Escort)
    task = make_task("escort", num_envs=6, seed=0)
    assert task.agents == ["guest_0", "guard_0"] and task.obs_sizes.tolist() == [6, 4]
    task.reset()
    for _ in range(24):
        obs, rewards, *_ = task.step(np.ones((6, 2), dtype=int))
    np.testing.assert_allclose(obs[:, 0, 2:4], [[0.5, 0.0]] * 6)  # at its speed limit
    np.testing.assert_allclose(obs[:, 1, :2], [[2.0, 0.0]] * 6, atol=0.01)  # where force and damping are in balance
    np.testing.assert_allclose(rewards, -np.hypot(obs[:, :, [0, 2]], obs[:, :, [1, 3]])[:, [0, 1], [0, 1]], rtol=1e-5)
    parallel_api_test(ParticleParallelEnv(Escort(1)), num_cycles=30)


# Wrong input


@settings(max_examples=25)
@given(task_id=st.sampled_from(TASK_IDS), num_envs=st.integers(1, 7), data=st.data())
def test_invalid_actions_are_refused_and_change_nothing(task_id, num_envs, data):
    task = make_task(task_id, num_envs, seed=0)
    task.reset()
    env = data.draw(st.integers(0, num_envs - 1))
    agent = data.draw(st.integers(0, task.num_agents - 1))
    limit = int(task.num_actions[agent])
    wrong = data.draw(st.one_of(st.integers(-(2**63), -1), st.integers(limit, 2**63 - 1)))
    actions = np.zeros((num_envs, task.num_agents), dtype=np.int64)
    actions[env, agent] = wrong
    before = task.get_state()
    with pytest.raises(TaskError, match=rf"{wrong} of {task.agents[agent]} in environment {env} .*0 to {limit - 1}"):
        task.step(actions)
    for name, value in task.get_state().items():
        np.testing.assert_array_equal(value, before[name])


def test_wrong_shapes_and_types_of_actions():
    task = make_task("cooperative_communication", num_envs=2, seed=0)
    with pytest.raises(TaskError, match="reset"):
        task.step(np.zeros((2, 2), dtype=int))
    task.reset()
    for actions, complaint in [
        (np.zeros((2, 3), dtype=int), r"\(2, 2\).*\(2, 3\)"),
        (np.zeros(2, dtype=int), r"\(2, 2\).*\(2,\)"),
        (np.zeros((2, 2, 5), dtype=int), r"\(2, 2\)"),
        (np.zeros((2, 2)), "integers.*float64"),
        (np.zeros((2, 2), dtype=bool), "integers.*bool"),
        (np.array([[2, 0], [0, -1]], dtype=np.int8), "-1 of listener_0 in environment 1"),
        (np.array([[2, 0], [0, 2**64 - 1]], dtype=np.uint64), "listener_0 in environment 1"),
    ]:
        with pytest.raises(TaskError, match=complaint):
            task.step(actions)
    for valid in ([[2, 4], [0, 0]], np.array([[2, 4], [0, 0]], dtype=np.uint8), np.array([[2, 0], [4, 0]]).T):
        task.step(valid)


@pytest.mark.parametrize("num_envs", [0, -1, 1.5, True, "3", None])
def test_wrong_number_of_environments(num_envs):
    with pytest.raises(TaskError, match="num_envs"):
        make_task("keep_away", num_envs)


@pytest.mark.parametrize("task_id", ["rover_tower_7", "rover_tower_2", "rover_tower_0"])
def test_rover_tower_needs_an_even_number_of_agents(task_id):
    with pytest.raises(TaskError, match=f"even number.*{task_id[-1]}"):
        make_task(task_id, 1)


def test_unknown_ids_name_the_known_ones_and_the_nearest():
    with pytest.raises(TaskError) as error:
        make_task("keep_awya", 1)
    assert "did you mean 'keep_away'?" in str(error.value)
    assert all(task_id in str(error.value) for task_id in TASK_IDS)
    for unknown in ("zzzz", "keep_away_maac_2", "rover_tower_eight", "rover_tower_"):
        with pytest.raises(TaskError, match=f"'{unknown}'"):
            make_task(unknown, 1)
