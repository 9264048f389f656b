"""The replay buffer of MAAC and the memory of the discriminators on MACK."""

import numpy as np
import pytest
import torch

from env_utils import RecordEpisodes, make_envs, random_actions
from madaac_utils.checkpoints import to_tensors
from madaac_utils.demos import Transitions
from tests.maths.helpers import MAAC, MACK, UNEQUAL, random_transitions, task

CPU = torch.device("cpu")


@MAAC
@pytest.mark.parametrize("capacity", [3000, 100, 90])  # never full; full with a copy left over; a whole number of steps
def test_the_replay_buffer_is_a_ring_of_transitions_with_true_successors(script, capacity):
    envs = RecordEpisodes(make_envs("cooperative_communication", 3, seed=0))
    act = random_actions(envs.num_actions, seed=0)
    buffer, history = script.ReplayBuffer(capacity, envs, CPU), []
    for _ in range(130):
        obs, actions = envs.obs, act(envs.obs)
        next_obs, rewards, terminated, _ = envs.step(actions)
        buffer.add(obs, actions, next_obs, rewards, terminated)
        for k in range(3):
            history.append((obs[k].tobytes(), actions[k].tolist(), next_obs[k].tobytes(), rewards[k].tolist()))
    latest = {row[0]: row for row in history[-capacity:]}
    assert len(buffer) == len(latest) == min(capacity, 390)

    torch.manual_seed(0)
    batch, drawn = buffer.sample(4000), set()
    assert batch.obs.shape == batch.next_obs.shape == (2, 4000, 11)
    assert batch.actions.shape == batch.rewards.shape == (2, 4000)
    assert batch.terminated.shape == (4000,) and batch.terminated.sum() == 0
    for k in range(4000):
        obs, next_obs = (part[:, k].contiguous().numpy().tobytes() for part in (batch.obs, batch.next_obs))
        assert obs in latest, "a transition that was overwritten"
        assert latest[obs] == (obs, batch.actions[:, k].tolist(), next_obs, batch.rewards[:, k].tolist())
        drawn.add(obs)
    assert len(drawn) > 0.99 * len(latest)


@MAAC
def test_the_replay_buffer_keeps_terminations_with_their_transitions(script):
    envs = task([1], [2])
    buffer = script.ReplayBuffer(10, envs, CPU)
    for t in range(10):
        obs = np.full((1, 1, 1), t, dtype=np.float32)
        buffer.add(obs, np.zeros((1, 1), dtype=int), obs + 1, np.zeros((1, 1)), np.array([t % 3 == 0]))
    batch = buffer.sample(200)
    assert torch.equal(batch.terminated, (batch.obs[0, :, 0] % 3 == 0).float())
    assert 0 < batch.terminated.mean() < 1


@MAAC
@pytest.mark.parametrize("steps", [3, 25])  # 100 transitions are full after 20 steps
def test_a_restored_replay_buffer_goes_on_in_the_same_way(script, steps, tmp_path):
    def add(buffer, first, last):
        for t in range(first, last):
            rng = np.random.default_rng(t)
            obs, next_obs = rng.normal(size=(2, 5, 3, 7))
            buffer.add(obs, rng.integers(2, size=(5, 3)), next_obs, rng.normal(size=(5, 3)), np.zeros(5))

    buffer, restored = (script.ReplayBuffer(100, UNEQUAL, CPU) for _ in range(2))
    add(buffer, 0, steps)
    torch.save(to_tensors(buffer.state_dict()), tmp_path / "buffer.pt")
    restored.load_state_dict(torch.load(tmp_path / "buffer.pt", weights_only=True))
    for one in (buffer, restored):
        add(one, steps, steps + 10)
    torch.manual_seed(5)
    expected = buffer.sample(500)
    torch.manual_seed(5)
    assert all(torch.equal(a, b) for a, b in zip(restored.sample(500), expected))


@MAAC
def test_a_checkpoint_of_the_replay_buffer_holds_only_what_was_written(script, tmp_path):
    buffer = script.ReplayBuffer(100_000, UNEQUAL, CPU)
    torch.save(to_tensors(buffer.state_dict()), tmp_path / "buffer.pt")
    assert (tmp_path / "buffer.pt").stat().st_size < 50_000


def numbered(first: int, batch: int) -> Transitions:
    """Transitions that carry their number, in all of their parts."""
    numbers = torch.arange(first, first + batch)[None]
    return Transitions(numbers[..., None].float(), 2 * numbers, 3 * numbers[..., None].float())


@MACK
def test_the_memory_is_a_uniform_sample_of_all_past_transitions(script):
    torch.manual_seed(0)
    held = torch.zeros(40)
    for _ in range(2000):
        memory = script.Memory(12, 5, task([1], [2]), CPU)
        for first in range(0, 40, 5):
            memory.add(numbered(first, 5))
            obs, actions, next_obs = memory.contents()
            assert obs.shape[1] == min(first + 5, 10), "12 transitions are two whole batches"
            assert torch.equal(2 * obs[..., 0], actions.float()) and torch.equal(3 * obs, next_obs)
            assert obs.unique().numel() == obs.numel()
        held[actions[0] // 2] += 1
    # 10 of 40: 0.25 with a standard error of 0.01
    torch.testing.assert_close(held / 2000, torch.full((40,), 0.25), atol=0.04, rtol=0)


@MACK
@pytest.mark.parametrize("batches", [1, 4])
def test_a_restored_memory_goes_on_in_the_same_way(script, batches, tmp_path):
    def batch(seed):
        obs, actions, next_obs = random_transitions(UNEQUAL, 10, seed)
        return Transitions(obs.float(), actions, next_obs.float())

    memory, restored = (script.Memory(20, 10, UNEQUAL, CPU) for _ in range(2))
    torch.manual_seed(0)
    for seed in range(batches):
        memory.add(batch(seed))
    torch.save(to_tensors(memory.state_dict()), tmp_path / "memory.pt")
    restored.load_state_dict(torch.load(tmp_path / "memory.pt", weights_only=True))
    for one in (memory, restored):
        torch.manual_seed(1)
        one.add(batch(9))
    assert all(torch.equal(a, b) for a, b in zip(memory.contents(), restored.contents()))


def test_demonstrations_are_drawn_with_replacement_and_all_parts_together():
    torch.manual_seed(0)
    obs, actions, next_obs = numbered(0, 10).sample(5000)
    assert torch.equal(2 * obs[..., 0], actions.float()) and torch.equal(3 * obs, next_obs)
    shares = torch.bincount(actions[0] // 2, minlength=10) / 5000
    torch.testing.assert_close(shares, torch.full((10,), 0.1), atol=0.02, rtol=0)
