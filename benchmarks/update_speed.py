"""Milliseconds of one update, and how near its matrix multiplies come to the machine's own rate.

    python benchmarks/update_speed.py

For each number of agents and of threads: the time of an update (batch 1000, hidden 128, 4 heads) of MAAC
(train_expert_maac.py), MA-DAAC (madaac_discrete.py) or MA-AIRL on MACK (mairl_mack.py), and its share of the
matrix-multiply rate: the floating-point operations of the update's matrix multiplies alone, counted from the
shapes, over the time of the whole update, relative to the rate of a 3000 x 128 x 128 product. That product is timed
in turns with the update, so that noise of a shared machine hits both. A share of 1 would be an update that spends no
time on anything else; what is not a matrix multiply (activations, softmax, Adam, copies) counts as lost.
"""

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
import tyro
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import madaac_discrete as madaac
import mairl_mack as mairl
import train_expert_maac as maac


@dataclass
class Args:
    algorithms: list[Literal["maac", "madaac", "mairl"]] = field(default_factory=lambda: ["maac", "madaac", "mairl"])
    """whose updates"""
    agents: list[int] = field(default_factory=lambda: [2, 3, 8, 16, 32])
    """numbers of agents"""
    threads: list[int] = field(default_factory=lambda: [1, 2])
    """numbers of torch threads"""
    batch_size: int = 1000
    """transitions in an update"""
    rounds: int = 15
    """rounds of one update and one rate measurement each; the fastest update and the fastest product count"""
    json: str = ""
    """write the numbers to this file as well"""


OBS_SIZE, NUM_ACTIONS = 16, 5  # of every agent: cooperative_navigation's


def mlp(size_in: int, hidden: int, size_out: int) -> tuple[int, int]:
    """Multiply-adds of a network with two hidden layers for one input, and those of its first layer."""
    return size_in * hidden + hidden * hidden + hidden * size_out, size_in * hidden


def forward_backward(size: tuple[int, int]) -> int:
    """A backward pass multiplies twice as much as its forward pass, less the gradient of the inputs."""
    total, first = size
    return 3 * total - first


def maac_multiply_adds(agents: int, hidden: int) -> int:
    """Of all matrix multiplies of one MAAC update, an agent and a transition."""
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
    """Of f forward and backward and log pi forward, an agent and a pair of learner's and expert's transitions."""
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
        joint = agents * (OBS_SIZE + NUM_ACTIONS)
        kfac = kfac_multiply_adds(OBS_SIZE, hidden, NUM_ACTIONS, batch) + kfac_multiply_adds(joint, hidden, 1, batch)
        rewards = mlp(OBS_SIZE + NUM_ACTIONS, hidden, 1)[0] + 2 * mlp(OBS_SIZE, hidden, 1)[0] + policy
        per_transition = kfac + mlp(joint, hidden, 1)[0] + rewards + airl_multiply_adds(hidden)
    else:
        per_transition = maac_multiply_adds(agents, hidden)
        if algorithm == "madaac":  # log pi once more, for the rewards
            per_transition += airl_multiply_adds(hidden) + 2 * policy
    return 2 * agents * batch * per_transition


def make_update(algorithm: str, agents: int, batch: int):
    torch.manual_seed(0)
    sizes = np.full(agents, OBS_SIZE), np.full(agents, NUM_ACTIONS)
    obs, next_obs, expert_obs, expert_next_obs = torch.randn(4, agents, batch, OBS_SIZE)
    actions, expert_actions = torch.randint(NUM_ACTIONS, (2, agents, batch))
    data = [obs, next_obs, actions, torch.randn(agents, batch) / 25, torch.zeros(batch)]
    if algorithm == "maac":
        args = maac.Args(batch_size=batch)
        nets = maac.make_networks(*sizes, args)
        return lambda: maac.update(tuple(data), nets, args)
    if algorithm == "madaac":
        args = madaac.Args(batch_size=batch)
        nets = madaac.make_networks(*sizes, args)
        return lambda: madaac.update(data, [expert_obs, expert_next_obs, expert_actions], nets, args, 25)
    args = mairl.Args()
    nets = mairl.make_networks(*sizes, args)
    rollout = SimpleNamespace(
        obs=obs.transpose(0, 1)[None].contiguous(),  # one step of `batch` copies that ends their episodes
        actions=actions.T[None].contiguous(),
        terminated=torch.ones(1, batch, dtype=torch.bool),
        done=torch.ones(1, batch, dtype=torch.bool),
        time_over=torch.zeros(1, batch),
    )

    def update() -> None:
        with torch.no_grad():
            rewards = nets.discriminators(obs, actions, next_obs) - mairl.log_pi(nets.policies, obs, actions, args)
        advantages, returns = mairl.advantages_and_returns(rollout, rewards.T[None] / 25, nets, args)
        mairl.mack_update(rollout, advantages, returns, nets, args)
        mairl.discriminator_update([obs, actions, next_obs], [expert_obs, expert_actions, expert_next_obs], nets, args)

    return update


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
    print("| algorithm | threads | agents | ms an update (best) | median | machine GFLOP/s | share of that rate |")
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
