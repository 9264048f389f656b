"""Running statistics of the expert's observations and rewards, against NumPy."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from train_expert_maac import RunningMeanStd


@given(st.lists(st.integers(1, 40), min_size=1, max_size=6), st.integers(0, 1000))
@settings(max_examples=30)
def test_statistics_equal_numpys_whatever_the_batches(lengths, seed):
    rng = np.random.default_rng(seed)
    batches = [rng.normal(3, 5, (n, 2, 3)) for n in lengths]
    stats = RunningMeanStd(2, 3)
    for batch in batches:
        stats.update(torch.as_tensor(batch))
    data = np.concatenate(batches)
    n, prior = len(data), 1e-4  # the statistics begin with mean 0 and variance 1 of 0.0001 observations
    mean = data.sum(0) / (n + prior)
    second_moment = ((data**2).sum(0) + prior) / (n + prior)
    np.testing.assert_allclose(stats.count, n + prior)
    np.testing.assert_allclose(stats.mean, mean, rtol=1e-9)
    np.testing.assert_allclose(stats.var, second_moment - mean**2, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(stats.mean, data.mean(0), atol=0.01)


def test_normalised_data_have_mean_0_and_variance_1():
    torch.manual_seed(0)
    data = torch.randn(5000, 2, 3) * torch.tensor([3.0, 0.1, 50.0]) + torch.tensor([7.0, -2.0, 1000.0])
    stats = RunningMeanStd(2, 3)
    for batch in data.split(100):
        stats.update(batch)
    normalized = stats.normalized(data.transpose(0, 1))  # [agents, n, features]
    torch.testing.assert_close(normalized.mean(1), torch.zeros(2, 3), atol=1e-3, rtol=0)
    torch.testing.assert_close(normalized.std(1), torch.ones(2, 3), atol=1e-3, rtol=0)


def test_zero_padding_stays_zero():
    stats = RunningMeanStd(2, 3)
    data = torch.randn(100, 2, 3)
    data[:, 1, 2] = 0.0
    stats.update(data)
    normalized = stats.normalized(data.transpose(0, 1))
    assert (normalized[1, :, 2] == 0).all()
    assert (normalized[0] != 0).all()
