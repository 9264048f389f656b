"""The attention critic against loops over agents, heads and the other agents."""

import math

import pytest
import torch
import torch.nn.functional as F

from tests.maths.helpers import EQUAL, MAAC, TASKS, madaac, random_transitions


def plain_critic(script, critic, envs, obs, actions):
    """Q of every agent, [batch, own actions] each, the squared logits, and weights [batch, heads, agents, agents].

    Only this function knows the names of the critic's parts.
    """
    attention = critic.attention if script is madaac else critic
    heads, hidden = attention.heads, attention.query.weight.shape[0]
    d, agents, batch, widest_obs = hidden // heads, len(envs.agents), obs.shape[1], obs.shape[2]
    encode_state, encode_both = critic.encode_state, critic.encode_state_action
    head_hidden, _, head_out = critic.head

    s, e = [], []  # encodings of each agent's observation, and of its observation and action
    for i, (size, number) in enumerate(zip(envs.obs_sizes, envs.num_actions)):
        state = obs[i, :, :size]
        both = torch.cat([state, F.one_hot(actions[i], int(number)).to(obs.dtype)], -1)
        if script is madaac:  # normalises its inputs over the batch; experts have running statistics
            state, both = (F.batch_norm(x, None, None, training=True) for x in (state, both))
        weight = torch.cat([encode_both.weight[i, :size], encode_both.weight[i, widest_obs : widest_obs + number]])
        s.append(F.leaky_relu(state @ encode_state.weight[i, :size] + encode_state.bias[i]))
        e.append(F.leaky_relu(both @ weight + encode_both.bias[i]))

    all_q, squared_logits = [], 0.0
    all_weights = torch.zeros(batch, heads, agents, agents, dtype=obs.dtype)
    for i in range(agents):
        attended = []
        others = [j for j in range(agents) if j != i]
        for h in range(heads):
            rows = slice(h * d, (h + 1) * d)
            query = s[i] @ attention.query.weight[rows].T
            logits = torch.stack([(query * (e[j] @ attention.key.weight[rows].T)).sum(-1) for j in others], -1)
            values = [F.leaky_relu(e[j] @ attention.value.weight[rows].T + attention.value.bias[rows]) for j in others]
            weights = torch.softmax(logits / math.sqrt(d), -1)
            attended.append(sum(weights[:, k, None] * value for k, value in enumerate(values)))
            squared_logits = squared_logits + logits.square().mean()
            all_weights[:, h, i, others] = weights.detach()
        x = F.leaky_relu(torch.cat([s[i], *attended], -1) @ head_hidden.weight[i] + head_hidden.bias[i])
        q = x @ head_out.weight[i] + head_out.bias[i]
        all_q.append(q[:, : envs.num_actions[i]])
    return all_q, squared_logits, all_weights


@MAAC
@TASKS
@pytest.mark.parametrize("hidden, heads", [(16, 4), (8, 1), (32, 2)])
def test_the_critic_equals_loops_and_so_do_its_gradients(script, envs, hidden, heads):
    torch.manual_seed(3)
    critic = script.AttentionCritic(envs, hidden, heads).double()
    obs, actions, _ = random_transitions(envs)
    results = []
    for forward in (critic, lambda o, a: plain_critic(script, critic, envs, o, a)):
        critic.zero_grad()
        q, squared_logits, weights = forward(obs, actions)
        own_q = [q[i][..., :number] for i, number in enumerate(envs.num_actions)]
        loss = sum(((1 + k) * part).sin().sum() for k, part in enumerate(own_q)) + squared_logits
        loss.backward()
        gradients = [parameter.grad.clone() for parameter in critic.parameters()]
        results.append([*own_q, squared_logits, weights, *gradients])
    for found, expected in zip(*results):
        torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-8)


@MAAC
@TASKS
def test_attention_is_on_the_others_and_sums_to_one(script, envs):
    critic = script.AttentionCritic(envs, 16, 4)
    obs, actions, _ = random_transitions(envs)
    weights = critic(obs.float(), actions)[2]
    is_self = torch.eye(len(envs.agents), dtype=torch.bool)
    assert (weights[..., is_self] == 0).all()
    assert (weights[..., ~is_self] > 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(7, 4, len(envs.agents)))


@MAAC
def test_an_agents_own_action_enters_the_other_agents_q_and_never_its_own(script):
    torch.manual_seed(0)
    critic = script.AttentionCritic(EQUAL, 16, 2)
    obs, actions, _ = random_transitions(EQUAL)
    changed = actions.clone()
    changed[1] = (changed[1] + 1) % 5
    before, after = (critic(obs.float(), a)[0] for a in (actions, changed))
    assert torch.equal(before[1], after[1])
    for i in (0, 2, 3):
        assert not torch.allclose(before[i], after[i])


@MAAC
def test_what_all_agents_share_is_the_attention_and_the_encoders_of_actions(script):
    """The loss of one agent reaches the shared parameters, and of the others only those of its own row."""
    critic = script.AttentionCritic(EQUAL, 16, 2).double()
    obs, actions, _ = random_transitions(EQUAL)
    critic(obs, actions)[0][2].square().sum().backward()
    shared = {id(parameter) for parameter in critic.shared_parameters()}
    assert 0 < len(shared) < len(list(critic.parameters()))
    for parameter in critic.parameters():
        reached = parameter.grad.flatten(1).abs().sum(1) > 0 if parameter.ndim == 3 else None
        if id(parameter) not in shared:
            assert reached.tolist() == [False, False, True, False]
        elif reached is not None:  # encoders of observation and action: of the agents attended to
            assert reached.tolist() == [True, True, False, True]
