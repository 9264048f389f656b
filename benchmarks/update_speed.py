"""Milliseconds per update, and how close its matrix multiplies come to the machine's own rate.

    python benchmarks/update_speed.py

For each number of agents and threads, this measures an update (hidden size 128, 4 heads) of MAAC
(train_expert_maac.py), MA-DAAC (madaac_discrete.py) or MA-AIRL on MACK (mairl_mack.py). The share is the number of
floating-point operations in the update's matrix multiplies, counted from their shapes, over the time of the whole
update, relative to the rate of a 3000 x 128 x 128 product. That product is timed in turns with the update, so that
other work on a shared machine affects both. A share of 1 would be an update that spends no time on anything else;
activations, softmax, Adam and copies count as lost time.
"""

import copy
import json
import platform
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import numpy as np
import torch
import torch.nn as nn
import tyro
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import madaac_discrete as madaac
import mairl_mack as mairl
import train_expert_maac as maac
from madaac_utils.demos import Transitions


@dataclass
class Args:
    algorithms: list[Literal["maac", "madaac", "mairl"]] = field(default_factory=lambda: ["maac", "madaac", "mairl"])
    """algorithms to measure"""
    agents: list[int] = field(default_factory=lambda: [2, 3, 8, 16, 32])
    """numbers of agents"""
    threads: list[int] = field(default_factory=lambda: [1, 2])
    """numbers of torch threads"""
    batch_size: int = 1000
    """transitions per update"""
    rounds: int = 15
    """rounds of one update and one measurement of the rate; the fastest of each counts"""
    json: str = ""
    """write the numbers to this file as well"""


OBS_SIZE, NUM_ACTIONS = 16, 5  # of every agent: cooperative_navigation's


def mlp(size_in: int, hidden: int, size_out: int) -> tuple[int, int]:
    """Multiply-adds of a network with two hidden layers for one input, and those of its first layer."""
    return size_in * hidden + hidden * hidden + hidden * size_out, size_in * hidden


def forward_backward(size: tuple[int, int]) -> int:
    """A backward pass takes twice the multiplications of its forward pass, without the gradient of the inputs."""
    total, first = size
    return 3 * total - first


def maac_multiply_adds(agents: int, hidden: int) -> int:
    """Of all matrix multiplies of one MAAC update, per agent and transition."""
    obs_action = OBS_SIZE + NUM_ACTIONS
    encoders = (OBS_SIZE + obs_action) * hidden  # state, state-action
    shared = 3 * hidden * hidden  # query, key, value
    attention = 2 * agents * hidden  # logits and weighted sum over all agents, all heads together
    heads = 2 * hidden * hidden + hidden * NUM_ACTIONS
    critic = encoders + shared + attention + heads
    policy = mlp(OBS_SIZE, hidden, NUM_ACTIONS)
    # Critics: target, online, online for the policies; one backward. Policies: target, online; one backward.
    return 2 * critic + forward_backward((critic, encoders)) + policy[0] + forward_backward(policy)


def airl_multiply_adds(hidden: int) -> int:
    """Of f forward and backward and log pi forward, per agent and pair of transitions (learner's and expert's)."""
    g, h = mlp(OBS_SIZE + NUM_ACTIONS, hidden, 1), mlp(OBS_SIZE, hidden, 1)
    # h of both ends of a transition
    return 2 * forward_backward(g) + 4 * forward_backward(h) + 2 * mlp(OBS_SIZE, hidden, NUM_ACTIONS)[0]


def kfac_multiply_adds(size_in: int, hidden: int, size_out: int, batch: int) -> float:
    """Forward, backward to the outputs for the Fisher matrix, backward of the loss, factors, and the step."""
    total, first = mlp(size_in, hidden, size_out)
    factors = size_in**2 + 2 * hidden**2 + 2 * hidden**2 + size_out**2
    layers = ((size_in, hidden), (hidden, hidden), (hidden, size_out))
    rotations = sum(2 * (a * a * b + a * b * b) for a, b in layers)
    return total + (total - first) + (2 * total - first) + factors + rotations / batch


def matrix_multiply_flops(algorithm: str, agents: int, batch: int, hidden: int) -> float:
    """Floating-point operations of all matrix multiplies of one update, a multiply-add counting as two."""
    policy = mlp(OBS_SIZE, hidden, NUM_ACTIONS)[0]
    if algorithm == "mairl":
        joint = agents * (OBS_SIZE + NUM_ACTIONS) + 1  # and the time
        kfac = kfac_multiply_adds(OBS_SIZE, hidden, NUM_ACTIONS, batch) + kfac_multiply_adds(joint, hidden, 1, batch)
        rewards = mlp(OBS_SIZE + NUM_ACTIONS, hidden, 1)[0] + 2 * mlp(OBS_SIZE, hidden, 1)[0] + policy
        per_transition = kfac + mlp(joint, hidden, 1)[0] + rewards + airl_multiply_adds(hidden)
    else:
        per_transition = maac_multiply_adds(agents, hidden)
        if algorithm == "madaac":  # the policies' pass on the learner's batch serves the discriminators too
            per_transition += airl_multiply_adds(hidden) - policy
    return 2 * agents * batch * per_transition


def make_update(algorithm: str, agents: int, batch: int):
    """One update with random data, in the order of the script's main()."""
    torch.manual_seed(0)
    envs = SimpleNamespace(
        agents=[f"agent_{k}" for k in range(agents)],
        obs_sizes=np.full(agents, OBS_SIZE),
        num_actions=np.full(agents, NUM_ACTIONS),
        num_envs=batch,
        episode_length=25,
    )
    obs, next_obs, expert_obs, expert_next_obs = torch.randn(4, agents, batch, OBS_SIZE)
    actions, expert_actions = torch.randint(NUM_ACTIONS, (2, agents, batch))
    rewards, terminated = torch.randn(agents, batch) / envs.episode_length, torch.zeros(batch)
    expert = Transitions(expert_obs, expert_actions, expert_next_obs)
    if algorithm == "maac":
        return maac_update(maac.Batch(obs, actions, next_obs, rewards, terminated), envs)
    if algorithm == "madaac":
        return madaac_update(madaac.Batch(obs, actions, next_obs, rewards, terminated), expert, envs)
    return mairl_update(Transitions(obs, actions, next_obs), expert, envs)


def maac_update(batch: maac.Batch, envs):
    args = maac.Args()
    policies = maac.Policies(envs, args.hidden_size)
    critic = maac.AttentionCritic(envs, args.hidden_size, args.attention_heads)
    target_policies, target_critic = copy.deepcopy(policies), copy.deepcopy(critic)
    policy_optimizer = torch.optim.Adam(policies.parameters(), args.policy_lr, fused=True)
    critic_optimizer = torch.optim.Adam(critic.parameters(), args.critic_lr, fused=True)

    def update() -> None:
        loss, _ = maac.critic_loss(batch, critic, target_critic, target_policies, args)
        step_critic(loss, critic, critic_optimizer, args)
        loss, _ = maac.policy_loss(batch.obs, policies(batch.obs), policies.has_action, critic, args)
        step_policies(loss, policies, policy_optimizer, args)
        maac.soft_update(target_critic, critic, args.critic_tau)
        maac.soft_update(target_policies, policies, args.policy_tau)

    return update


def madaac_update(learner: madaac.Batch, demo: Transitions, envs):
    args = madaac.Args()
    policies = madaac.Policies(envs, args.hidden_size)
    critic = madaac.AttentionCritic(envs, args.hidden_size, args.attention_heads)
    discriminators = madaac.Discriminators(envs, args)
    target_policies, target_critic = copy.deepcopy(policies), copy.deepcopy(critic)
    policy_optimizer = torch.optim.Adam(policies.parameters(), args.policy_lr, fused=True)
    critic_optimizer = torch.optim.Adam(critic.parameters(), args.critic_lr, fused=True)
    disc_optimizer = torch.optim.Adam(discriminators.parameters(), args.disc_lr, fused=True)

    def update() -> None:
        both = Transitions(*(torch.cat(parts, 1) for parts in zip(learner[:3], demo)))
        f_learner, f_demo = discriminators(both).chunk(2, 1)
        logits, demo_logits = policies(learner.obs), policies(demo.obs)
        logits_learner = f_learner - madaac.log_pi(logits, learner.actions)
        logits_expert = f_demo - madaac.log_pi(demo_logits, demo.actions)
        rewards = logits_learner.detach() / envs.episode_length
        loss, _ = madaac.critic_loss(learner, rewards, critic, target_critic, target_policies, args)
        step_critic(loss, critic, critic_optimizer, args)
        loss, _ = madaac.policy_loss(learner.obs, logits, policies.has_action, critic, args)
        step_policies(loss, policies, policy_optimizer, args)
        madaac.soft_update(target_critic, critic, args.critic_tau)
        madaac.soft_update(target_policies, policies, args.policy_tau)
        loss, _ = madaac.discriminator_loss(logits_learner, logits_expert, args)
        step_discriminators(loss, discriminators, disc_optimizer, args)

    return update


def mairl_update(learner: Transitions, demo: Transitions, envs):
    """The rollout is one step of `batch` copies, which ends their episodes."""
    args = mairl.Args()
    policies, values = mairl.Policies(envs, args.hidden_size), mairl.Values(envs, args.hidden_size)
    discriminators = mairl.Discriminators(envs, args)
    policy_kfac = mairl.KFAC(policies.network, args.policy_lr, args.kl_clip)
    value_kfac = mairl.KFAC(values.network, args.critic_lr, mairl.VALUE_KL_CLIP)
    disc_optimizer = torch.optim.Adam(discriminators.parameters(), args.disc_lr, fused=True)
    obs, actions, next_obs = (part.transpose(0, 1)[None].contiguous() for part in learner)
    rollout = mairl.Rollout(
        obs=obs,
        actions=actions,
        next_obs=next_obs,
        rewards=torch.zeros(actions.shape),
        done=torch.ones(actions.shape[:2], dtype=torch.bool),
        time=torch.zeros(actions.shape[:2]),
    )

    def update() -> None:
        with torch.no_grad():
            rewards = mairl.discriminator_logits(learner, discriminators, policies)
        rewards = rewards.T[None] / envs.episode_length
        advantages, returns = mairl.advantages_and_returns(
            rollout, rewards, policies, values, envs.episode_length, args
        )
        mairl.mack_update(rollout, advantages, returns, policies, values, policy_kfac, value_kfac, args)
        both = Transitions(*(torch.cat(parts, 1) for parts in zip(learner, demo)))
        logits = mairl.discriminator_logits(both, discriminators, policies)
        loss, _ = mairl.discriminator_loss(*logits.chunk(2, 1), args)
        step_discriminators(loss, discriminators, disc_optimizer, args)

    return update


def step_critic(loss: torch.Tensor, critic, optimizer, args) -> None:
    optimizer.zero_grad()
    loss.backward()
    for parameter in critic.shared_parameters():
        parameter.grad /= len(critic.encode_state.weight)  # the number of agents
    nn.utils.clip_grad_norm_(critic.parameters(), args.critic_max_grad_norm)
    optimizer.step()


def step_policies(loss: torch.Tensor, policies, optimizer, args) -> None:
    optimizer.zero_grad()
    loss.backward()
    madaac.clip_each_agent(policies, args.policy_max_grad_norm)
    optimizer.step()


def step_discriminators(loss: torch.Tensor, discriminators, optimizer, args) -> None:
    optimizer.zero_grad()
    loss.backward()
    madaac.clip_each_agent(discriminators, args.disc_max_grad_norm)
    optimizer.step()


def seconds(function, repeats: int = 1) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        function()
    return (time.perf_counter() - start) / repeats


def main(args: Args) -> None:
    too_few = min(args.agents, default=0) < 2 or min(args.threads, default=0) < 1 or not args.algorithms
    if too_few or args.rounds < 1 or args.batch_size < 2:
        print("error: needs an algorithm, at least 2 agents, 1 thread, 1 round and a batch of 2", file=sys.stderr)
        sys.exit(2)
    left, right = torch.randn(3000, 128), torch.randn(128, 128)
    rows = []
    cases = [(name, threads, agents) for name in args.algorithms for threads in args.threads for agents in args.agents]
    for algorithm, threads, agents in tqdm(cases, desc="measuring", file=sys.stderr):
        torch.set_num_threads(threads)
        update = make_update(algorithm, agents, args.batch_size)
        seconds(update, 3)
        seconds(lambda: left @ right, 50)
        times, products = [], []
        for _ in range(args.rounds):
            times.append(seconds(update))
            products.append(seconds(lambda: left @ right, 20))
        flops = matrix_multiply_flops(algorithm, agents, args.batch_size, maac.Args.hidden_size)
        rate = 2 * 3000 * 128 * 128 / min(products)
        rows.append(
            {
                "algorithm": algorithm,
                "threads": threads,
                "agents": agents,
                "milliseconds": 1e3 * min(times),
                "median_milliseconds": 1e3 * sorted(times)[len(times) // 2],
                "machine_gflops": rate / 1e9,
                "share": flops / min(times) / rate,
            }
        )
    print("| algorithm | threads | agents | ms per update (best) | median | machine GFLOP/s | share of that rate |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for row in rows:
        print(
            f"| {row['algorithm']} | {row['threads']} | {row['agents']} | {row['milliseconds']:.1f} "
            f"| {row['median_milliseconds']:.1f} "
            f"| {row['machine_gflops']:.0f} | {row['share']:.2f} |"
        )
    best = {(row["algorithm"], row["threads"], row["agents"]): row["milliseconds"] for row in rows}
    for algorithm, threads in sorted({key[:2] for key in best}):
        if (algorithm, threads, 8) in best and (algorithm, threads, 16) in best:
            ratio = best[algorithm, threads, 16] / best[algorithm, threads, 8]
            print(f"{algorithm}, {threads} thread(s): 16 agents take {ratio:.2f} times as long as 8")
    if args.json:
        facts = {"torch": torch.__version__, "machine": platform.machine(), "rows": rows}
        Path(args.json).write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
