"""The tasks as PettingZoo environments, and their pictures."""

import copy
import pickle

import numpy as np
import pytest
from pettingzoo.test import parallel_api_test, parallel_seed_test

from particle_envs import TASK_IDS, Canvas, TaskError, make_task, parallel_env
from particle_envs.render import rgb


@pytest.mark.parametrize("task_id", TASK_IDS)
def test_pettingzoo_accepts_it(task_id):
    parallel_api_test(parallel_env(task_id), num_cycles=60)
    parallel_seed_test(lambda: parallel_env(task_id), num_cycles=30)


@pytest.mark.parametrize("task_id", TASK_IDS)
def test_it_plays_as_a_batch_of_one(task_id):
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


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
@pytest.mark.parametrize("task_id", TASK_IDS)
def test_a_copy_plays_on_like_the_original_and_apart_from_it(task_id, duplicate):
    """Libraries such as SuperSuit copy an environment to make a batch of it."""
    env = parallel_env(task_id)
    env.reset(seed=1)
    first = duplicate(env)
    step = dict.fromkeys(env.agents, 1)
    played = [env.step(step)[:2] for _ in range(5)] + [env.reset()]
    repeated = [first.step(step)[:2] for _ in range(5)] + [first.reset()]
    for (obs, rewards), (same_obs, same_rewards) in zip(played, repeated):
        assert rewards == same_rewards
        for agent in env.possible_agents:
            np.testing.assert_array_equal(obs[agent], same_obs[agent])
    assert any(obs.any() for obs in first.reset()[0].values())


def test_wrong_use():
    with pytest.raises(TaskError, match="render_mode.*'ansi'"):
        parallel_env("keep_away", render_mode="ansi")
    with pytest.raises(TaskError, match="'keep_awya'"):
        parallel_env("keep_awya")
    env = parallel_env("keep_away")
    still = {"pusher_0": 0, "reacher_0": 0}
    with pytest.raises(TaskError, match="reset"):
        env.step(still)
    env.reset(seed=0)
    for actions, complaint in [
        ({"pusher_0": 0}, "reacher_0"),
        ({"pusher_0": 0, "reacher_0": 5}, "action 5 of reacher_0"),
        ({"pusher_0": 0, "reacher_0": 1.5}, "integers"),
    ]:
        with pytest.raises(TaskError, match=complaint):
            env.step(actions)
    for _ in range(25):
        env.step(still)
    with pytest.raises(TaskError, match="reset"):
        env.step(still)
    env.reset()
    env.step(still)


# Pictures


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
    assert {rgb(look["color"]) for look in env.task.appearance(0)} <= colors_in(frames[-1])
    np.testing.assert_array_equal(env.render(), frames[-1])
    env.close()
    assert parallel_env(task_id).render() is None


def test_pictures_have_x_to_the_right_and_y_up():
    env = parallel_env("keep_away", render_mode="rgb_array")
    env.reset(seed=0)
    env.task.pos[:, 0, 0] = 0.5, 0.8  # the pusher
    rows, columns = np.nonzero((env.render() == rgb(env.task.entities[0].color)).all(axis=-1))
    assert columns.mean() == pytest.approx(350 + 0.5 * 264, abs=10)
    assert rows.mean() == pytest.approx(350 - 0.8 * 264, abs=25)
    env.task.pos[:, 0, 0] = -3, -7  # far outside, but the picture must still show it
    rows, columns = np.nonzero((env.render() == rgb(env.task.entities[0].color)).all(axis=-1))
    assert len(rows) > 20 and rows.mean() > 600 and columns.mean() < 350
    env.close()


def test_labels_stay_in_the_picture_and_apart(monkeypatch):
    written = []
    write = Canvas._write

    def record(self, font, text, center, *colors):
        written.append((text, self.pygame.Rect(0, 0, *font.size(text)).move(*center)))
        write(self, font, text, center, *colors)

    monkeypatch.setattr(Canvas, "_write", record)
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
