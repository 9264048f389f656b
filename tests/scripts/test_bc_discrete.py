"""bc_discrete.py: the loss, the held-out demonstrations, and runs by the command line."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import bc_discrete as bc
from env_utils import RecordEpisodes, make_envs
from madaac_utils.demos import load_demos, save_demos
from madaac_utils.evaluation import score_policy
from madaac_utils.files import EXPERTS, UserError
from madaac_utils.policies import load_policy
from tests.small_runs import make_run, run_script

TASK = "cooperative_communication"  # its agents have observations and actions of unequal sizes


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs"), "bc_discrete.py", TASK)


def test_the_loss_equals_a_plain_loop_over_agents():
    torch.manual_seed(0)
    envs, demos = make_envs(TASK, 1), load_demos(TASK)[:2].transitions()
    policies = bc.Policies(envs, 16)
    loss, accuracy = bc.cloning_loss(policies, demos)
    for i, (obs_size, actions) in enumerate(zip(envs.obs_sizes, envs.num_actions)):
        x = demos.obs[i, :, :obs_size]
        for layer in policies.network:
            if isinstance(layer, bc.StackedLinear):
                weight = layer.weight[i, : x.shape[1]]
                x = x @ weight + layer.bias[i, 0]
            else:
                x = torch.where(x > 0, x, 0.01 * x)
        log_probs = x[:, :actions].log_softmax(1)
        chosen = log_probs[torch.arange(len(x)), demos.actions[i]]
        assert loss[i].item() == pytest.approx(-chosen.mean().item(), rel=1e-5)
        assert accuracy[i].item() == pytest.approx((log_probs.argmax(1) == demos.actions[i]).float().mean().item())


def test_each_agent_learns_as_if_it_were_alone():
    """The gradient of an agent does not depend on the other agents' data."""
    torch.manual_seed(0)
    policies, demos = bc.Policies(make_envs(TASK, 1), 16), load_demos(TASK)[:2].transitions()
    gradients = []
    for scale in (1.0, 3.0):
        obs = demos.obs.clone()
        obs[1] *= scale
        policies.zero_grad()
        bc.cloning_loss(policies, demos._replace(obs=obs))[0].sum().backward()
        gradients.append(policies.network[0].weight.grad.clone())
    assert torch.equal(gradients[0][0], gradients[1][0]) and not torch.equal(gradients[0][1], gradients[1][1])


@pytest.mark.parametrize("n_demos, fraction, held_out", [(50, 0.1, 5), (50, 0.2, 10), (5, 0.1, 1), (2, 0.0, 1)])
def test_the_last_of_the_demonstrations_are_held_out(n_demos, fraction, held_out):
    demos = load_demos(TASK)
    args = bc.Args(n_demos=n_demos, held_out_fraction=fraction)
    learned, kept_apart = bc.hold_out(demos, args, torch.device("cpu"))
    for found, expected in ((learned, demos[: n_demos - held_out]), (kept_apart, demos[n_demos - held_out : n_demos])):
        assert torch.equal(found.obs, expected.transitions().obs)


def test_nothing_to_learn_from_is_refused():
    for arguments in ({"n_demos": 1}, {"n_demos": 10, "held_out_fraction": 1.0}, {"n_demos": 10**6}):
        with pytest.raises(UserError):
            bc.hold_out(load_demos(TASK), bc.Args(**arguments), torch.device("cpu"))


def test_the_most_accurate_policies_are_kept_and_the_later_ones_of_equals():
    envs = make_envs(TASK, 1)
    kept, policies = bc.KeptPolicies(envs, 16), [bc.Policies(envs, 16) for _ in range(4)]
    for number, (new, accuracy, best) in enumerate(zip(policies, (0.5, 0.4, 0.5, 0.6), (0, 0, 2, 3))):
        kept.keep_better(new, torch.tensor(accuracy))
        assert torch.equal(kept.network[0].weight, policies[best].network[0].weight), number
    assert not any(torch.equal(kept.network[0].weight, other.network[0].weight) for other in policies[:3])


def test_playing_for_the_log_does_not_touch_the_random_numbers_of_learning():
    envs = RecordEpisodes(make_envs(TASK, 3, 0))
    policies = bc.Policies(envs, 16)
    before = torch.get_rng_state()
    bc.play_episodes(policies, envs, torch.device("cpu"))
    assert torch.equal(before, torch.get_rng_state())
    assert len(envs.recent_returns) == 3


def test_cloning_learns(tmp_path):
    run = make_run(tmp_path, "bc_discrete.py", TASK, "--updates", 400, "--hidden-size", 64)
    summary = json.loads((run / "summary.json").read_text())
    found = score_policy(TASK, load_policy(run / "policy.safetensors").greedy, episodes=200)
    assert found["nss_mean"] > 0.4
    assert summary["nss_last_500_training_episodes"] > 0.2


def test_the_summary_has_the_keys_of_the_other_scripts_and_counts_no_episodes(run, tmp_path):
    other = make_run(tmp_path, "mairl_mack.py", TASK)
    found, expected = (json.loads((folder / "summary.json").read_text()) for folder in (run, other))
    assert found.keys() >= expected.keys() - {"true_reward"}
    assert found["greedy"].keys() == expected["greedy"].keys()
    assert (found["episodes"], found["steps"], found["n_demos"]) == (0, 60, 50)
    assert not (run / "reward.safetensors").exists()


def test_the_same_seed_gives_the_same_policy_and_another_seed_another(run, tmp_path):
    again, other = (make_run(tmp_path, "bc_discrete.py", TASK, "--seed", seed) for seed in (1, 2))
    first, second, third = (load_file(folder / "policy.safetensors") for folder in (run, again, other))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["weight_0"], third["weight_0"])


def test_a_resumed_run_ends_as_one_that_was_never_stopped(run, tmp_path):
    stopped = make_run(tmp_path, "bc_discrete.py", TASK, "--updates", 37)
    assert run_script("bc_discrete.py", "--resume", stopped, "--updates", 60, "--eval-episodes", 4) == 0
    parts = [torch.load(folder / "checkpoint.pt", weights_only=True)["parts"] for folder in (run, stopped)]
    for name in ("policies", "trained_policies"):
        assert all(torch.equal(parts[0][name][key], parts[1][name][key]) for key in parts[0][name])
    assert json.loads((stopped / "summary.json").read_text())["steps"] == 60


def test_demonstrations_beyond_the_number_asked_for_play_no_part(tmp_path):
    demos = load_demos(TASK)
    envs = make_envs(TASK, 1)
    paths = []
    for name in ("shipped", "changed"):
        if name == "changed":
            demos.actions[10:] = np.random.default_rng(0).integers(envs.num_actions, size=demos.actions[10:].shape)
        save_demos(tmp_path / f"{name}.npz", demos)
        options = ("--demos", tmp_path / f"{name}.npz", "--n-demos", 10)
        paths.append(make_run(tmp_path / "runs", "bc_discrete.py", TASK, *options) / "policy.safetensors")
    first, second = map(load_file, paths)
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--n-demos", 1],
        ["--n-demos", 100_000],
        ["--held-out-fraction", 1],
        ["--held-out-fraction", -0.1],
        ["--updates", 0],
        ["--lr", 0],
        ["--weight-decay", -1],
        ["--env-id", "no_such_task"],
        ["--env-id", "simple_crypto"],
        ["--demos", EXPERTS / "simple_tag"],
        ["--resume", "nowhere"],
    ],
    ids=lambda arguments: " ".join(map(str, arguments)),
)
def test_a_mistake_ends_in_one_line_and_writes_nothing(arguments, tmp_path, capsys):
    runs = tmp_path / "runs"
    assert run_script("bc_discrete.py", "--env-id", TASK, "--runs", runs, *arguments) == 2
    printed = capsys.readouterr().err.strip().splitlines()
    assert len(printed) == 1 and printed[0].startswith("error: ")
    assert not runs.exists()
