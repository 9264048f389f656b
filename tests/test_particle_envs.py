"""The tasks against what is known of them from elsewhere: published scores, a slow plain reference, mpe2 itself.

Then what `make_envs` promises of a batch (shapes, ends of episodes, seeds, independent copies, state), the
PettingZoo environments and their pictures, and wrong input.
"""

import importlib
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pettingzoo.test import parallel_api_test, parallel_seed_test

from particle_envs import TASK_IDS, Canvas, CooperativeNavigation, TaskError, make_task, parallel_env

PAPER_IDS = TASK_IDS[:7]
MPE2_IDS = TASK_IDS[7:]
SOLID_IDS = ["keep_away", "keep_away_maac", "cooperative_navigation", "simple_tag", "simple_spread", "simple_push"]


def random_joint_actions(task, rng, steps=25):
    """[steps, B, agents]"""
    return rng.integers(task.num_actions, size=(steps, task.num_envs, task.num_agents))


def crowd(task, factor=0.25):
    """Draw the agents together, so that those that can collide soon do."""
    task.pos[:, : task.num_agents] *= factor
    return task.set_state(task.get_state())


def touching(task) -> int:
    return int((task.pair_squared < task._touch_squared).sum()) if task.pairs else 0


# Known scores.


@pytest.mark.parametrize(
    ("task_id", "scores", "errors"),
    [
        ("keep_away", [116.3, -26.1], [1.3, 0.26]),
        ("keep_away_maac", [116.9, -26.5], [1.3, 0.27]),
        ("cooperative_communication", [-55.9] * 2, [0.58] * 2),
        ("cooperative_navigation", [-179.0] * 3, [1.06] * 3),
        ("rover_tower_8", [-7.7] * 8, [1.9] * 8),
        ("rover_tower_12", [-7.7] * 12, [1.9] * 12),
        ("rover_tower_16", [-7.7] * 16, [1.9] * 16),
    ],
)
def test_random_play_scores_what_it_is_known_to_score(task_id, scores, errors):
    task = make_task(task_id, num_envs=2000, seed=0)
    task.reset()
    rng = np.random.default_rng([0, 1])  # not the stream that the positions come from
    returns = sum(task.step(actions)[1].astype(float) for actions in random_joint_actions(task, rng))
    assert (np.abs(returns.mean(axis=0) - scores) < 3 * np.array(errors)).all(), returns.mean(axis=0)


# A slow reference for the paper's tasks: one environment, one body at a time, plain floats.

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
    """Starts where environment `env` of a batch stands; all that follows is computed here."""

    maac = False  # physics of MAAC's fork: masses multiply pushes, and contacts by their ratio

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
                push[k] = [agent.force * (agent.mass if self.maac else 1.0) * part for part in DIRECTION[actions[k]]]
        for a, first in enumerate(self.agents):
            for b, second in enumerate(self.agents[:a]):
                if not (first.solid and second.solid):
                    continue
                gap = first.distance(second) - first.size - second.size
                self.contacts += gap < 0
                depth = 0.001 * math.log1p(math.exp(-gap / 0.001)) if gap > -0.5 else -gap
                ratio = second.mass / first.mass if self.maac else 1.0
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


class PlainKeepAwayMAAC(PlainKeepAway):
    maac = True


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
            for agent in self.agents:  # oneself among them
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
    "keep_away_maac": PlainKeepAwayMAAC,
    "cooperative_communication": PlainCommunication,
    "cooperative_navigation": PlainNavigation,
    "rover_tower_8": PlainRoverTower,
    "rover_tower_6": PlainRoverTower,
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
    for t, actions in enumerate(random_joint_actions(task, np.random.default_rng([0, 1])), start=1):
        _, rewards, _, _, obs = task.step(actions)
        expected = [reference.step(joint) for reference, joint in zip(plain, actions)]
        np.testing.assert_allclose(rewards, expected, rtol=0, atol=1e-5, err_msg=f"{t=}")
        assert_same_observations(obs, t)
        prizes += int((rewards > 0).sum())
    if task_id.startswith("rover_tower"):
        assert prizes > 0
    if crowded and task_id in SOLID_IDS:
        assert sum(reference.contacts for reference in plain) > 20


def test_starts_are_drawn_as_the_tasks_say():
    """Uniform places (landmarks closer in where a task says so), all at rest and silent, goals and pairs uniform."""
    for task_id in TASK_IDS:
        task = make_task(task_id, num_envs=3000, seed=0)
        task.reset()
        for _ in range(3):
            task.advance(np.ones((3000, task.num_agents), dtype=int))
        task.reset()
        inner = {"keep_away": 0.8, "keep_away_maac": 0.8, "simple_tag": 0.9}.get(task_id, 1.0)
        for entity in range(len(task.bodies)):
            edge = 1.0 if entity < task.num_agents else inner
            place = task.pos[:, entity]
            assert 0.99 * edge < np.abs(place).max() <= edge, (task_id, entity)
            assert np.abs(place.mean(axis=1)).max() < 4 * edge / math.sqrt(3 * 3000)
            assert np.abs(place.std(axis=1) - edge / math.sqrt(3)).max() < 0.02
        assert not task.vel.any()
        for name in {"message"} & set(task.extra_rows):
            assert not task.extra_view(name).any()

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


# mpe2 itself, put into the same state.


def put_into_mpe2(raw, task, env):
    for k, entity in enumerate(raw.world.entities):
        entity.state.p_pos = task.pos[:, k, env].copy()
        entity.state.p_vel = np.zeros(2)
        if entity.movable:
            entity.state.p_vel = task.vel[:, k - task.movers.start, env].copy()
    goal = raw.world.landmarks[task.goal[env]]
    if hasattr(raw.world.agents[0], "goal_b"):  # the speaker's: whom to guide, and where to
        raw.world.agents[0].goal_b = goal
    elif hasattr(raw.world.agents[0], "goal_a"):
        for agent in raw.world.agents:
            agent.goal_a = goal
    if task.agents == ["adversary_0", "agent_0"]:  # simple_push: the agent wears the colour of its goal
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
    actions = random_joint_actions(task, rng)  # [25, B, agents]
    played = [(task.observe(), None, None)]
    contacts = 0
    for joint in actions:
        contacts += touching(task)
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
                for action in actions[t - 1, env]:  # agents in turn; the world steps after the last
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
    if task_id in SOLID_IDS:
        assert contacts > 50
    if task_id == "simple_tag":
        catches = sum((rewards[:, 0] > 0).sum() for _, rewards, _ in played[1:])
        assert catches > 50
        assert np.abs(task.pos[:, task.prey]).max() > 0.9  # the fence was met


# What a batch promises.


@pytest.mark.parametrize("task_id", TASK_IDS)
def test_shapes_ends_and_true_final_observations(task_id):
    task, twin = make_task(task_id, num_envs=7, seed=3), make_task(task_id, num_envs=7, seed=3)
    assert len(task.agents) == len(task.obs_sizes) == len(task.num_actions) == task.num_agents
    assert task.episode_length == 25
    shape = (7, task.num_agents, int(max(task.obs_sizes)))
    padding = np.arange(shape[2]) >= task.obs_sizes[:, None]  # [agents, widest]
    rng = np.random.default_rng(0)
    obs = task.reset()
    np.testing.assert_array_equal(obs, twin.reset())
    assert obs.shape == shape and obs.dtype == np.float32
    for _episode in range(2):
        first = obs
        for t in range(1, 26):
            actions = rng.integers(task.num_actions, size=shape[:2])
            given_actions = actions.copy()
            obs, rewards, terminated, truncated, final_obs = task.step(actions)
            np.testing.assert_array_equal(actions, given_actions)
            for array in (obs, final_obs):
                assert array.shape == shape and array.dtype == np.float32
                assert not array[:, padding].any() and np.isfinite(array).all()
            assert rewards.shape == (7, task.num_agents) and rewards.dtype == np.float32
            assert terminated.shape == truncated.shape == (7,) and terminated.dtype == truncated.dtype == bool
            assert not terminated.any()
            assert truncated.all() if t == 25 else not truncated.any()
            np.testing.assert_array_equal(rewards, twin.advance(actions))
            np.testing.assert_array_equal(final_obs, twin.observe())
            if t < 25:
                np.testing.assert_array_equal(obs, final_obs)
        np.testing.assert_array_equal(obs, twin.reset())  # a new episode has begun
        assert not np.array_equal(obs, final_obs) and not np.array_equal(obs, first)
        assert not task.vel.any()


@pytest.mark.parametrize("task_id", TASK_IDS)
def test_returned_arrays_stay_as_they_are(task_id):
    task = make_task(task_id, num_envs=2, seed=0)
    kept = [task.reset()]
    for actions in random_joint_actions(task, np.random.default_rng(0), steps=3):
        obs, rewards, _, _, final_obs = task.step(actions)
        kept += [obs, rewards, final_obs]
    copies = [array.copy() for array in kept]
    for actions in random_joint_actions(task, np.random.default_rng(1), steps=30):
        task.step(actions)
    for array, copy in zip(kept, copies):
        np.testing.assert_array_equal(array, copy)


def play(task, actions):
    """Observations and rewards of some steps, to compare bit for bit."""
    steps = [task.step(joint) for joint in actions]
    return [np.stack(parts) for parts in zip(*steps)]


def assert_identical(one, other):
    for left, right in zip(one, other, strict=True):
        np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("task_id", TASK_IDS)
def test_the_seed_decides_everything(task_id):
    def trajectory(seed, reset_seed=None):
        task = make_task(task_id, num_envs=3, seed=seed)
        first = task.reset(reset_seed)
        return [first, *play(task, random_joint_actions(task, np.random.default_rng(0), steps=55))]

    assert_identical(trajectory(5), trajectory(5))
    assert_identical(trajectory(6, reset_seed=5), trajectory(5))
    one, other = trajectory(5), trajectory(6)
    assert not np.array_equal(one[0], other[0]) and not np.array_equal(one[2], other[2])
    first = one[0]
    assert not np.array_equal(first[0], first[1])  # nor are the copies of a batch alike


@pytest.mark.parametrize("task_id", TASK_IDS)
def test_copies_do_not_touch_one_another(task_id):
    rng = np.random.default_rng(0)
    task = make_task(task_id, num_envs=5, seed=1)
    task.reset()
    crowd(task)
    start = task.get_state()
    actions = random_joint_actions(task, rng, steps=30)  # into the next episode
    before = play(task, actions)
    others = [0, 1, 3, 4]

    disturbed = actions.copy()
    disturbed[:25, 2] = (disturbed[:25, 2] + 1) % task.num_actions
    task.set_state(start)
    for what, left, right in zip(("obs", "rewards"), before, play(task, disturbed)):
        np.testing.assert_array_equal(left[:, others], right[:, others])
        assert not np.array_equal(left[:25, 2], right[:25, 2]), what

    moved = {**start, "rows": start["rows"].copy()}
    moved["rows"][1 + 2 * len(task.bodies) :, 2] += 0.3  # velocities, and what else is observed
    moved["rows"][1 : 1 + 2 * len(task.bodies), 2] *= -0.5
    task.set_state(moved)
    for left, right in zip(before, play(task, actions)):
        np.testing.assert_array_equal(left[:, others], right[:, others])
    task.set_state(moved)
    assert not np.array_equal(before[1][0, 2], task.step(actions[0])[1][2])


@pytest.mark.parametrize("task_id", TASK_IDS)
def test_a_batch_of_a_hundred_is_a_hundred_batches_of_one(task_id):
    task = make_task(task_id, num_envs=100, seed=0)
    task.reset()
    crowd(task, 0.08)
    start = task.get_state()
    actions = random_joint_actions(task, np.random.default_rng([0, 1]))
    contacts = 0
    obs, rewards = [task.observe()], []
    for joint in actions:
        contacts += touching(task)
        _, reward, _, truncated, final_obs = task.step(joint)
        obs.append(final_obs)
        rewards.append(reward)
    assert truncated.all()
    if task_id in SOLID_IDS:
        assert contacts > 100

    single = make_task(task_id, num_envs=1, seed=7)
    for k in range(100):
        state = {name: value[..., k : k + 1] for name, value in start.items() if isinstance(value, np.ndarray)}
        np.testing.assert_array_equal(single.set_state({**state, "time": 0})[0], obs[0][k])
        for t, joint in enumerate(actions):
            reward = single.advance(joint[k : k + 1])
            np.testing.assert_array_equal(reward[0], rewards[t][k])
            np.testing.assert_array_equal(single.observe()[0], obs[t + 1][k])


@pytest.mark.parametrize("task_id", TASK_IDS)
def test_a_saved_state_goes_on_bit_for_bit_past_the_end_of_the_episode(task_id):
    rng = np.random.default_rng(0)
    task = make_task(task_id, num_envs=4, seed=2)
    task.reset()
    crowd(task)
    play(task, random_joint_actions(task, rng, steps=17))
    state = task.get_state()
    assert all(isinstance(value, np.ndarray | int | str) for value in state.values())
    kept = {name: value.copy() if isinstance(value, np.ndarray) else value for name, value in state.items()}
    seen = task.observe()
    actions = random_joint_actions(task, rng, steps=60)
    expected = play(task, actions)

    other = make_task(task_id, num_envs=4, seed=99)
    other.reset()
    np.testing.assert_array_equal(other.set_state(state), seen)
    assert_identical(play(other, actions), expected)
    for name, value in kept.items():  # neither of them has written into the saved state
        np.testing.assert_array_equal(state[name], value)
    without_generator = {name: value for name, value in state.items() if name != "rng"}
    other.set_state(without_generator)
    again = play(other, actions)
    assert_identical([part[:7] for part in again], [part[:7] for part in expected])
    assert not np.array_equal(again[0][8], expected[0][8])  # the next episode is drawn by its own generator
    assert json.loads(state["rng"])["bit_generator"] == "PCG64"
    with pytest.raises(TaskError, match="shape"):
        make_task(task_id, num_envs=3).set_state(state)


@settings(max_examples=25)
@given(half=st.integers(2, 10), num_envs=st.integers(1, 7), seed=st.integers(0, 2**32 - 1))
def test_any_rover_tower(half, num_envs, seed):
    task = make_task(f"rover_tower_{2 * half}", num_envs, seed)
    assert task.agents == [f"rover_{k}" for k in range(half)] + [f"tower_{k}" for k in range(half)]
    assert task.obs_sizes.tolist() == [half + 9] * half + [half + 4] * half
    assert task.num_actions.tolist() == [5] * (2 * half)
    obs = task.reset()
    rng = np.random.default_rng(seed)
    for t in range(1, 28):
        assert obs.shape == (num_envs, 2 * half, half + 9) and obs.dtype == np.float32
        assert not obs[:, half:, half + 4 :].any()
        tower_of_rover, rover_of_tower = obs[:, :half, :half].argmax(-1), obs[:, half:, :half].argmax(-1)
        assert (obs[:, :, :half].sum(axis=-1) == 1).all()
        np.testing.assert_array_equal(
            np.take_along_axis(tower_of_rover, rover_of_tower, axis=1), np.tile(np.arange(half), (num_envs, 1))
        )
        actions = rng.integers(5, size=(num_envs, 2 * half))
        obs, rewards, terminated, truncated, final_obs = task.step(actions)
        np.testing.assert_array_equal(rewards[:, :half], np.take_along_axis(rewards[:, half:], tower_of_rover, axis=1))
        heard = np.take_along_axis(actions[:, half:], tower_of_rover, axis=1)
        np.testing.assert_array_equal(final_obs[:, :half, half : half + 5], np.eye(5)[heard])
        assert not terminated.any() and (truncated == (t == 25)).all()


@settings(max_examples=25)
@given(task_id=st.sampled_from(TASK_IDS), num_envs=st.integers(1, 7), data=st.data())
def test_any_action_that_is_not_there_is_refused(task_id, num_envs, data):
    task = make_task(task_id, num_envs, seed=0)
    task.reset()
    env = data.draw(st.integers(0, num_envs - 1))
    agent = data.draw(st.integers(0, task.num_agents - 1))
    limit = int(task.num_actions[agent])
    wrong = data.draw(st.one_of(st.integers(-(2**63), -1), st.integers(limit, 2**63 - 1)))
    actions = np.zeros((num_envs, task.num_agents), dtype=np.int64)
    actions[env, agent] = wrong
    before = task.get_state()
    with pytest.raises(TaskError, match=rf"{wrong} of {task.agents[agent]} .*0 to {limit - 1}"):
        task.step(actions)
    for name, value in task.get_state().items():
        np.testing.assert_array_equal(value, before[name])


# PettingZoo.


@pytest.mark.parametrize("make", [*TASK_IDS, CooperativeNavigation.parallel_env])
def test_pettingzoo_api_and_seeds(make):
    def new():
        return parallel_env(make) if isinstance(make, str) else make()

    parallel_api_test(new(), num_cycles=60)
    parallel_seed_test(new, num_cycles=30)


@pytest.mark.parametrize("task_id", TASK_IDS)
def test_pettingzoo_environment_is_a_batch_of_one(task_id):
    env, task = parallel_env(task_id), make_task(task_id, num_envs=1)
    assert env.possible_agents == task.agents and env.metadata["name"] == task_id
    for seed in (4, None):
        by_agent, infos = env.reset(seed=seed)
        batch = task.reset(seed)
        assert infos == {agent: {} for agent in env.agents}
        rng = np.random.default_rng(0)
        for t in range(26):
            for k, agent in enumerate(task.agents):
                np.testing.assert_array_equal(by_agent[agent], batch[0, k, : task.obs_sizes[k]])
                assert env.observation_space(agent).contains(by_agent[agent])
            np.testing.assert_array_equal(env.state(), np.concatenate(list(by_agent.values())))
            if t == 25:
                break
            joint = {agent: int(rng.integers(env.action_space(agent).n)) for agent in env.agents}
            by_agent, rewards, terminations, truncations, _ = env.step(joint)
            actions = np.array([list(joint.values())])
            _, expected, _, ended, batch = task.step(actions)
            np.testing.assert_array_equal(list(rewards.values()), expected[0])
            assert set(terminations.values()) == {False} and set(truncations.values()) == {bool(ended[0])}
            assert env.agents == ([] if t == 24 else task.agents)
        task.set_state(env.task.get_state())


def colors_in(frame) -> set[tuple[int, ...]]:
    packed = np.unique(frame.astype(int) @ [1 << 16, 1 << 8, 1])
    return {(color >> 16, color >> 8 & 255, color & 255) for color in packed.tolist()}


@pytest.mark.parametrize("task_id", TASK_IDS)
def test_pictures_show_the_agents_and_change(task_id):
    env = parallel_env(task_id, render_mode="rgb_array")
    env.reset(seed=0)
    rng = np.random.default_rng(0)
    frames = [env.render()]
    for _ in range(8):
        env.step({agent: int(rng.integers(env.action_space(agent).n)) for agent in env.agents})
        frames.append(env.render())
    for frame, earlier in zip(frames[1:], frames):
        assert frame.shape == (700, 700, 3) and frame.dtype == np.uint8
        assert (frame != earlier).any()
    inks = {Canvas._ink(look["color"]) for look in env.task.appearance(0)}
    assert inks <= colors_in(frames[-1])
    np.testing.assert_array_equal(env.render(), frames[-1])
    env.close()
    assert parallel_env(task_id).render() is None


def test_pictures_have_x_to_the_right_and_y_up():
    env = parallel_env("keep_away", render_mode="rgb_array")
    env.reset(seed=0)
    env.task.pos[:, 0, 0] = 0.5, 0.8  # the pusher
    rows, columns = np.nonzero((env.render() == Canvas._ink(env.task.bodies[0].color)).all(axis=-1))
    assert columns.mean() == pytest.approx(350 + 0.5 * 264, abs=10)
    assert rows.mean() == pytest.approx(350 - 0.8 * 264, abs=25)
    env.task.pos[:, 0, 0] = -3, -7  # far out: the picture must still hold it
    rows, columns = np.nonzero((env.render() == Canvas._ink(env.task.bodies[0].color)).all(axis=-1))
    assert len(rows) > 20 and rows.mean() > 600 and columns.mean() < 350
    env.close()


def test_labels_stay_in_the_picture_and_off_one_another(monkeypatch):
    written = []
    write = Canvas._write

    def noting(self, font, text, center, *colors):
        written.append((text, self.pygame.Rect(0, 0, *font.size(text)).move(*center)))
        write(self, font, text, center, *colors)

    monkeypatch.setattr(Canvas, "_write", noting)
    task = make_task("simple_tag", num_envs=1, seed=0)
    task.reset()
    task.pos[:, :4, 0] = np.array([[-1.17, 0.0, 0.2, 1.19], [1.17, 0.3, 0.3, -1.19]])
    Canvas("simple_tag").draw(task, 0)
    labels = {text: box.move(-box.width / 2, -box.height / 2) for text, box in written}
    assert {"adversary_0", "adversary_1", "adversary_2", "agent_0"} < set(labels)
    for box in labels.values():
        assert box.left >= 0 and box.top >= 0 and box.right <= 700 and box.bottom <= 700
    assert not labels["adversary_1"].colliderect(labels["adversary_2"])


def test_messages_are_in_the_picture(monkeypatch):
    written = []
    monkeypatch.setattr(Canvas, "_write", lambda self, font, text, *where: written.append(text))
    for task_id, speakers in (("rover_tower_4", 2), ("cooperative_communication", 1)):
        task = make_task(task_id, num_envs=2, seed=0)
        task.reset()
        canvas = Canvas(task_id)
        canvas.draw(task, 1)
        assert not {"A", "B", "C", "D", "E"} & set(written)  # nobody has spoken yet
        assert set(task.agents) < set(written)
        written.clear()
        actions = np.zeros((2, task.num_agents), dtype=int)
        actions[1, -2:] = (2, 1) if speakers == 2 else (2, 0)  # the last agents, or the speaker, who is first
        task.step(actions)
        canvas.draw(task, 1)
        assert sorted(set(written) & {"A", "B", "C", "D", "E"}) == (["B", "C"] if speakers == 2 else ["C"])
        assert any("step 1 of 25" in text for text in written)
        written.clear()


def test_a_window_opens_and_closes(monkeypatch):
    import pygame

    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    env = parallel_env("rover_tower_8", render_mode="human")
    env.reset(seed=0)
    assert pygame.display.get_init() and pygame.display.get_surface().get_size() == (700, 700)
    before = pygame.surfarray.array3d(pygame.display.get_surface())
    env.step({agent: 1 for agent in env.agents})
    assert (pygame.surfarray.array3d(pygame.display.get_surface()) != before).any()
    assert env.render() is None
    env.close()
    env.close()
    assert not pygame.display.get_init()


# Wrong input.


@pytest.mark.parametrize("num_envs", [0, -1, 1.5, True, "3", None])
@pytest.mark.parametrize("task_id", ["keep_away", "rover_tower_8"])
def test_wrong_number_of_environments(task_id, num_envs):
    with pytest.raises(TaskError, match="num_envs must be a whole number of at least 1"):
        make_task(task_id, num_envs)


@pytest.mark.parametrize("task_id", ["rover_tower_7", "rover_tower_2", "rover_tower_0"])
def test_rover_towers_that_cannot_be(task_id):
    with pytest.raises(TaskError, match="even number of at least 4 agents, got " + task_id[-1]):
        make_task(task_id, 1)


@pytest.mark.parametrize("make", [lambda name: make_task(name, 1), parallel_env])
def test_unknown_ids_name_the_known_ones_and_the_nearest(make):
    with pytest.raises(TaskError) as error:
        make("keep_awya")
    assert "did you mean 'keep_away'?" in str(error.value)
    assert all(task_id in str(error.value) for task_id in TASK_IDS)
    with pytest.raises(TaskError, match=r"unknown task 'zzzz'\. Known tasks: keep_away"):
        make("zzzz")


def test_wrong_actions():
    task = make_task("cooperative_communication", num_envs=2, seed=0)
    with pytest.raises(TaskError, match=r"call reset\(\) before"):
        task.step(np.zeros((2, 2), dtype=int))
    task.reset()
    for actions, complaint in [
        (np.zeros((2, 3), dtype=int), r"shape \(2, 2\).*got \(2, 3\)"),
        (np.zeros(2, dtype=int), r"shape \(2, 2\).*got \(2,\)"),
        (np.zeros((2, 2, 5), dtype=int), r"shape \(2, 2\)"),
        (np.zeros((2, 2)), "integers, got float64"),
        (np.zeros((2, 2), dtype=bool), "integers, got bool"),
        (np.array([[0, 0], [3, 4]]), "action 3 of speaker_0 in environment 1 .* 0 to 2"),
        (np.array([[2, 5], [0, 0]]), "action 5 of listener_0 in environment 0 .* 0 to 4"),
        (np.array([[2, 0], [0, -1]], dtype=np.int8), "action -1 of listener_0 in environment 1"),
    ]:
        with pytest.raises(TaskError, match=complaint):
            task.step(actions)
    for good in ([[2, 4], [0, 0]], np.array([[2, 4], [0, 0]], dtype=np.uint8), np.array([[2, 0], [4, 0]]).T):
        task.step(good)


def test_wrong_use_of_a_pettingzoo_environment():
    with pytest.raises(TaskError, match="render_mode must be 'human', 'rgb_array' or None, got 'ansi'"):
        parallel_env("keep_away", render_mode="ansi")
    env = parallel_env("keep_away")
    still = {"pusher_0": 0, "reacher_0": 0}
    with pytest.raises(TaskError, match=r"call reset\(\)"):
        env.step(still)
    env.reset(seed=0)
    with pytest.raises(TaskError, match="no action for reacher_0"):
        env.step({"pusher_0": 0})
    with pytest.raises(TaskError, match="action 5 of reacher_0"):
        env.step({"pusher_0": 0, "reacher_0": 5})
    with pytest.raises(TaskError, match="integers"):
        env.step({"pusher_0": 0, "reacher_0": 1.5})
    for _ in range(25):
        env.step(still)
    with pytest.raises(TaskError, match=r"call reset\(\)"):
        env.step(still)
    env.reset()
    env.step(still)
