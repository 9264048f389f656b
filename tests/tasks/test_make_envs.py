"""`make_envs` with other people's environments: the remaining tasks of mpe2, and small made-up ones that are awkward.

Also `record_episodes` and `play_episodes`, which play any of them, and wrong input.
"""

import json
import sys
import types

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from pettingzoo import ParallelEnv

from env_utils import PettingZooEnvs, make_envs, mpe2_tasks, play_episodes, random_actions, record_episodes
from particle_envs import TASK_IDS, ParticleTask, TaskError, make_task

OUR_MPE2 = [task_id for task_id in TASK_IDS if task_id.startswith("simple")]
OTHER_MPE2 = "simple simple_crypto simple_reference simple_world_comm simple_formation simple_line collect_treasure"


class Odd(ParallelEnv):
    """Two agents. The seed decides whether an episode lasts 3, 4, 5 or 6 steps; `left` observes that length.

    Episodes of even length terminate, those of odd length are truncated. The reward of `left` is the time, and that of
    `right` is its action.
    """

    metadata = {"name": "odd"}  # noqa: RUF012
    possible_agents = ["left", "right"]  # noqa: RUF012
    spaces = {  # noqa: RUF012
        "left": (spaces.Box(-9, 9, (2,)), spaces.Discrete(3)),
        "right": (spaces.Box(-9, 9, (2, 3)), spaces.Discrete(4, start=1)),
    }

    def observation_space(self, agent):
        return self.spaces[agent][0]

    def action_space(self, agent):
        return self.spaces[agent][1]

    def observations(self):
        left = np.array([self.length, self.time], dtype=np.float32)
        right = self.time + 10 * np.arange(1, 7, dtype=np.float32).reshape(2, 3)
        return {"left": left, "right": right}

    def reset(self, seed=None, options=None):
        self.agents = list(self.possible_agents)
        self.length, self.time = 3 + 3 * seed % 4, 0
        return self.observations(), {agent: {} for agent in self.agents}

    def step(self, actions):
        assert self.agents, "stepped after its end"
        assert all(self.action_space(agent).contains(actions[agent]) for agent in self.agents), actions
        self.time += 1
        over, ends = self.time == self.length, self.length % 2 == 0
        rewards = {"left": float(self.time), "right": float(actions.get("right", 0))}
        terminations = {agent: over and ends for agent in self.agents}
        truncations = {agent: over and not ends for agent in self.agents}
        infos = {agent: {} for agent in self.agents}
        if over:
            self.agents = []
        return self.observations(), rewards, terminations, truncations, infos


@pytest.fixture
def module(monkeypatch):
    """Put an environment class where `make_envs` finds it, and return its path."""

    def register(make) -> str:
        home = types.ModuleType("made_up.env")
        home.parallel_env = make
        monkeypatch.setitem(sys.modules, "made_up.env", home)
        return "made_up.env"

    return register


def assert_contract(envs, obs, rewards=None, terminated=None, truncated=None, final_obs=None):
    shape = (envs.num_envs, len(envs.agents), int(max(envs.obs_sizes)))
    padding = np.arange(shape[2]) >= np.asarray(envs.obs_sizes)[:, None]
    for array in (obs,) if final_obs is None else (obs, final_obs):
        assert array.shape == shape and array.dtype == np.float32 and not array[:, padding].any()
    if rewards is not None:
        assert rewards.shape == shape[:2] and rewards.dtype == np.float32
        assert terminated.shape == truncated.shape == shape[:1] and terminated.dtype == truncated.dtype == bool
        assert not (terminated & truncated).any()


# Finding an environment by its id


def test_our_own_tasks_are_batched():
    for task_id in TASK_IDS:
        envs = make_envs(task_id, 2, seed=3)
        assert isinstance(envs, ParticleTask)
        np.testing.assert_array_equal(envs.reset(), make_task(task_id, 2, seed=3).reset())


def test_every_task_of_mpe2_has_a_short_name():
    assert set(OTHER_MPE2.split()) | set(OUR_MPE2) == set(mpe2_tasks())


@pytest.mark.parametrize("env_id", [*OTHER_MPE2.split(), "mpe2.simple_tag_v3", "mpe2.simple_speaker_listener_v4"])
def test_mpe2_tasks_play_past_two_ends(env_id):
    envs = make_envs(env_id, 2, seed=0)
    assert isinstance(envs, PettingZooEnvs) and envs.episode_length == 25
    theirs = envs.envs[0]
    assert envs.agents == theirs.possible_agents
    assert list(envs.num_actions) == [theirs.action_space(agent).n for agent in envs.agents]
    assert list(envs.obs_sizes) == [theirs.observation_space(agent).shape[0] for agent in envs.agents]
    their_step, calls = theirs.step, []
    theirs.step = lambda joint: calls.append((joint, their_step(joint))) or calls[-1][1]
    obs = envs.reset()
    assert_contract(envs, obs)
    rng = np.random.default_rng(0)
    for t in range(1, 56):
        actions = rng.integers(envs.num_actions, size=obs.shape[:2])
        obs, rewards, terminated, truncated, final_obs = envs.step(actions)
        assert_contract(envs, obs, rewards, terminated, truncated, final_obs)
        assert not terminated.any() and (truncated == (t % 25 == 0)).all()
        assert np.array_equal(obs, final_obs) == (t % 25 != 0)
        joint, (their_obs, their_rewards, *_) = calls[-1]
        assert joint == dict(zip(envs.agents, actions[0]))
        for k, agent in enumerate(envs.agents):
            np.testing.assert_array_equal(final_obs[0, k, : envs.obs_sizes[k]], their_obs[agent])
            assert rewards[0, k] == np.float32(their_rewards[agent])
    assert len(calls) == 55
    assert not np.array_equal(obs[0], obs[1])


def test_a_module_path_gives_the_same_task_as_our_own_by_name():
    ours, theirs = make_envs("simple_tag", 1), make_envs("mpe2.simple_tag_v3", 1)
    for name in ("agents", "episode_length", "num_envs"):
        assert getattr(ours, name) == getattr(theirs, name)
    for name in ("obs_sizes", "num_actions"):
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))


# Copies whose episodes end at different times


def test_each_copy_ends_on_its_own(module):
    envs = make_envs(module(Odd), 8, seed=0)
    assert envs.agents == ["left", "right"]
    assert envs.obs_sizes.tolist() == [2, 6] and envs.num_actions.tolist() == [3, 4]
    obs = envs.reset()
    assert_contract(envs, obs)
    assert (obs[:, 0, 1] == 0).all()
    length, time = obs[:, 0, 0].copy(), np.zeros(8)
    assert len(set(length)) > 1
    rng = np.random.default_rng(0)
    kinds = set()
    for _ in range(40):
        actions = rng.integers(envs.num_actions, size=(8, 2))
        obs, rewards, terminated, truncated, final_obs = envs.step(actions)
        assert_contract(envs, obs, rewards, terminated, truncated, final_obs)
        time += 1
        over = time == length
        np.testing.assert_array_equal(terminated, over & (length % 2 == 0))
        np.testing.assert_array_equal(truncated, over & (length % 2 == 1))
        np.testing.assert_array_equal(rewards[:, 0], time)
        np.testing.assert_array_equal(rewards[:, 1], actions[:, 1] + 1)  # its first action is 1
        # The last observation of the old episode, [length, time] and a flattened (2, 3) ...
        np.testing.assert_array_equal(final_obs[:, 0, :2], np.stack([length, time], axis=1))
        np.testing.assert_array_equal(final_obs[:, 1], time[:, None] + 10 * np.arange(1, 7))
        # ... and the first observation of the new one, for the copies whose episode is over.
        length, time = np.where(over, obs[:, 0, 0], length), np.where(over, 0, time)
        np.testing.assert_array_equal(obs[:, 0, :2], np.stack([length, time], axis=1))
        kinds |= set(zip(terminated.tolist(), truncated.tolist()))
    assert kinds == {(False, False), (False, True), (True, False)}


def test_seeds_of_adapted_environments(module):
    def lengths(env_id, seed, reset_seed=None):
        envs = make_envs(env_id, 6, seed)
        shown = [envs.reset(reset_seed)[:, 0, 0]]
        for _ in range(30):
            shown.append(envs.step(np.zeros((6, 2), dtype=int))[0][:, 0, 0])
        return np.array(shown)

    path = module(Odd)
    np.testing.assert_array_equal(lengths(path, 3), lengths(path, 3))
    np.testing.assert_array_equal(lengths(path, 4, reset_seed=3), lengths(path, 3))
    assert not np.array_equal(lengths(path, 3), lengths(path, 4))


def test_a_resumed_run_gets_fresh_episodes(module):
    envs = make_envs(module(Odd), 3, seed=0)
    envs.reset()
    envs.step(np.zeros((3, 2), dtype=int))
    state = envs.get_state()
    fresh = envs.set_state(state)
    assert (fresh[:, 0, 1] == 0).all()
    # It continues with the seeds that come next, not with those of the first episodes.
    again = make_envs(envs.env_id, 3, seed=0)
    assert json.loads(state["rng"]) != again.rng.bit_generator.state
    again.reset()
    assert json.loads(state["rng"]) == again.rng.bit_generator.state
    assert np.array_equal(again.reset(), fresh)


def test_returned_observations_are_not_written_to_later(module):
    envs = make_envs(module(Odd), 3, seed=0)
    first = envs.reset()
    kept = [first, *envs.step(np.zeros((3, 2), dtype=int))]
    copies = [array.copy() for array in kept]
    for _ in range(10):
        envs.step(np.ones((3, 2), dtype=int))
    for array, copy in zip(kept, copies):
        np.testing.assert_array_equal(array, copy)


def test_episode_length_is_found(module):
    class Limited(Odd):
        max_cycles = 41

    class Inner(Odd):
        def __init__(self):
            self.env = types.SimpleNamespace(max_steps=42)

    class Endless(Odd):
        def reset(self, seed=None, options=None):
            out = super().reset(seed, options)
            self.length = 10**9
            return out

    assert make_envs(module(Odd), 2).episode_length == 6  # seeds 0, 1 and 2 give 3, 6 and 5 steps
    assert make_envs(module(Limited), 2).episode_length == 41
    assert make_envs(module(Inner), 2).episode_length == 42
    assert make_envs(module(Endless), 2).episode_length == 1000


def test_ends_that_are_flagged_but_leave_the_agents_listed(module):
    class Lingering(Odd):
        def step(self, actions):
            out = super().step(actions)
            self.agents = list(self.possible_agents)
            return out

    envs = make_envs(module(Lingering), 4, seed=0)
    length = envs.reset()[:, 0, 0]
    for t in range(1, 4):
        obs, _, terminated, truncated, final_obs = envs.step(np.zeros((4, 2), dtype=int))
        np.testing.assert_array_equal(terminated | truncated, length == t)
        np.testing.assert_array_equal(obs[:, 0, 1], np.where(length == t, 0, t))
        np.testing.assert_array_equal(final_obs[:, 0, 1], t)
    assert (length == 3).any()


# Environments that do not fit, and wrong input


@pytest.mark.parametrize("signs", ["flag list", "flag", "list", "list result"])
def test_an_agent_that_leaves_early_is_refused(module, signs):
    class Leaver(Odd):
        def step(self, actions):
            everything = super().step(actions)
            if self.time == 2:
                if "flag" in signs:
                    everything[2]["right"] = True
                if "list" in signs:
                    self.agents = ["left"]
                if "result" in signs:
                    everything = tuple({"left": part["left"]} for part in everything)
            return everything

    envs = make_envs(module(Leaver), 2, seed=0)
    envs.reset()
    envs.step(np.zeros((2, 2), dtype=int))
    with pytest.raises(TaskError, match=r"made_up\.env: .* fixed.*right"):
        envs.step(np.zeros((2, 2), dtype=int))


def test_an_episode_that_starts_without_an_agent_is_refused(module):
    class Latecomer(Odd):
        def reset(self, seed=None, options=None):
            out = super().reset(seed, options)
            self.agents = ["right"]
            return out

        def step(self, actions):  # called only to find the length of episodes
            self.agents = []
            return self.observations(), {}, {}, {}, {}

    envs = make_envs(module(Latecomer), 2, seed=0)
    with pytest.raises(TaskError, match=r"fixed.*\['right'\]"):
        envs.reset()


@pytest.mark.parametrize(
    ("right", "complaint"),
    [
        ((spaces.Box(-1, 1, (2,)), spaces.Box(-1, 1, (2,))), "Discrete.*right.*Box"),
        ((spaces.Box(-1, 1, (2,)), spaces.MultiDiscrete([2, 2])), "Discrete.*right.*MultiDiscrete"),
        ((spaces.Dict({"a": spaces.Box(-1, 1, (2,))}), spaces.Discrete(2)), "Box.*right.*Dict"),
        ((spaces.Discrete(4), spaces.Discrete(2)), "Box.*right.*Discrete"),
    ],
)
def test_spaces_that_do_not_fit_are_refused(module, right, complaint):
    class Unfit(Odd):
        spaces = {**Odd.spaces, "right": right}  # noqa: RUF012

    with pytest.raises(TaskError, match=complaint):
        make_envs(module(Unfit), 1)


def test_unknown_ids_name_the_known_ones_and_the_nearest():
    for wrong, right in [("simple_tga", "simple_tag"), ("simple_cripto", "simple_crypto"), ("Keep_Away", "keep_away")]:
        with pytest.raises(TaskError) as error:
            make_envs(wrong, 1)
        assert repr(wrong) in str(error.value) and f"did you mean {right!r}?" in str(error.value)
        assert all(env_id in str(error.value) for env_id in [*TASK_IDS, *OTHER_MPE2.split()])


@pytest.mark.parametrize(
    ("env_id", "complaint"),
    [
        ("", "unknown task ''"),
        ("no_such_package.env", "import 'no_such_package.env'.*installed"),
        ("mpe2.simple_tug_v3", "import 'mpe2.simple_tug_v3'"),
        ("mpe2.", "import 'mpe2.'"),
        (".simple_tag", "'.simple_tag'; did you mean 'simple_tag'"),
        (".mpe2.simple_tag_v3", "unknown task '.mpe2.simple_tag_v3'"),
        ("os.path", "'os.path' has no parallel_env"),
        ("rover_tower_7", "even number"),
        ("rover_tower_2", "at least 4"),
        ("rover_tower_eight", "unknown task 'rover_tower_eight'; did you mean 'rover_tower_8'"),
    ],
)
def test_wrong_ids(env_id, complaint):
    with pytest.raises(TaskError, match=complaint):
        make_envs(env_id, 1)


@pytest.mark.parametrize("num_envs", [0, -1, 1.5, True, "2"])
@pytest.mark.parametrize("env_id", ["simple_tag", "simple_crypto"])
def test_wrong_number_of_environments(env_id, num_envs):
    with pytest.raises(TaskError, match="num_envs"):
        make_envs(env_id, num_envs)


@pytest.mark.parametrize("env_id", ["simple_speaker_listener", "mpe2.simple_speaker_listener_v4"])
def test_wrong_actions_are_refused_in_the_same_way(env_id):
    envs = make_envs(env_id, 2, seed=0)
    envs.reset()
    for actions, complaint in [
        (np.zeros((2, 3), dtype=int), r"shape \(2, 2\).*got \(2, 3\)"),
        (np.zeros((2, 2)), "integers, got float64"),
        (np.array([[0, 0], [3, 4]]), "action 3 of speaker_0 in environment 1 .* 0 to 2"),
        (np.array([[0, -1], [0, 0]]), "action -1 of listener_0 in environment 0"),
    ]:
        with pytest.raises(TaskError, match=complaint):
            envs.step(actions)
    envs.step(np.array([[2, 4], [0, 0]]))


# Playing episodes


def test_returns_and_records_of_episodes_that_end_early(module):
    def act(obs):
        return np.ones(obs.shape[:2], dtype=int)

    path = module(Odd)
    demos = record_episodes(path, act, 30, seed=0)
    returns, length = demos.returns, demos.obs[:, 0, 0, 0].astype(int)
    assert set(length) == {3, 4, 5, 6}
    np.testing.assert_array_equal(demos.lengths, length)
    np.testing.assert_array_equal(returns[:, 0], length * (length + 1) / 2)  # 1 + 2 + ... + length
    np.testing.assert_array_equal(returns[:, 1], 2 * length)
    assert demos.obs.shape == (30, 7, 2, 6) and demos.actions.shape == demos.rewards.shape == (30, 6, 2)
    for episode in range(30):
        for t in range(7):
            if t <= length[episode]:
                np.testing.assert_array_equal(demos.obs[episode, t, 0, :2], [length[episode], t])
                np.testing.assert_array_equal(demos.obs[episode, t, 1], t + 10 * np.arange(1, 7))
            else:
                assert not demos.obs[episode, t].any()
        np.testing.assert_array_equal(demos.actions[episode, :, 0], np.arange(6) < length[episode])
        assert not demos.rewards[episode, length[episode] :].any()
    np.testing.assert_array_equal(play_episodes(path, act, 30, seed=0), returns)


def test_returns_and_records_of_our_own_tasks():
    num_actions = make_envs("cooperative_communication", 1).num_actions
    demos = record_episodes("cooperative_communication", random_actions(num_actions, 1), 40, 5)
    envs, act = make_envs("cooperative_communication", 40, 5), random_actions(num_actions, 1)
    obs, by_hand = envs.reset(), np.zeros((40, 2))
    for t in range(25):
        np.testing.assert_array_equal(demos.obs[:, t], obs)
        actions = act(obs)
        np.testing.assert_array_equal(demos.actions[:, t], actions)
        obs, rewards, _, _, final_obs = envs.step(actions)
        np.testing.assert_array_equal(demos.obs[:, t + 1], final_obs)
        by_hand += rewards
    np.testing.assert_allclose(demos.returns, by_hand, rtol=1e-6)
    assert demos.obs.dtype == demos.rewards.dtype == np.float32 and demos.actions.dtype == np.int64
    assert (demos.lengths == 25).all()


def test_more_episodes_than_copies_at_once(module):
    path = module(Odd)
    seen = []

    def act(obs):
        seen.append(len(obs))
        return np.zeros(obs.shape[:2], dtype=int)

    demos = record_episodes("keep_away", act, 1203, seed=0)
    assert demos.returns.shape == (1203, 2) and len(demos.lengths) == 1203 and max(seen) == 500
    assert len(np.unique(demos.obs[:, 0].reshape(1203, -1), axis=0)) == 1203  # no episode is played twice
    np.testing.assert_allclose(demos.rewards.sum(1), demos.returns, rtol=1e-5)
    demos = record_episodes(path, act, 501, seed=0)
    assert demos.returns.shape == (501, 2) and demos.obs.shape[1] == demos.actions.shape[1] + 1 == 7
    np.testing.assert_array_equal(demos.lengths, demos.obs[:, 0, 0, 0])


@settings(max_examples=20)
@given(num_actions=st.lists(st.integers(1, 9), min_size=1, max_size=5), copies=st.integers(1, 7), seed=st.integers(0))
def test_random_actions_fit_every_agent(num_actions, copies, seed):
    act = random_actions(np.array(num_actions), seed)
    actions = np.stack([act(np.zeros((copies, len(num_actions), 3))) for _ in range(200)])
    assert actions.shape == (200, copies, len(num_actions)) and np.issubdtype(actions.dtype, np.integer)
    np.testing.assert_array_equal(actions.min(axis=(0, 1)), 0)
    np.testing.assert_array_equal(actions.max(axis=(0, 1)), np.array(num_actions) - 1)


def test_random_actions_are_independent_of_positions_drawn_with_the_same_seed():
    envs = make_envs("keep_away", 2000, seed=0)
    act, obs = random_actions(envs.num_actions, seed=0), envs.reset()
    fifth = np.floor(5 * (envs.pos + 1) / 2)  # [2, entities, B], from 0 to 4 like the actions
    for _ in range(4):
        agree = [(fifth == chosen).mean(axis=-1) for chosen in act(obs).T]
        assert np.abs(np.array(agree) - 0.2).max() < 0.06  # more than six standard errors
