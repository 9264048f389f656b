"""Milliseconds of one update, and how near its matrix multiplies come to the machine's own rate.

    python benchmarks/update_speed.py

For each number of agents and of threads: the time of a MAAC update (batch 1000, hidden 128, 4 heads), and its share
of the matrix-multiply rate: the floating-point operations of the update's matrix multiplies alone, counted from the
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

import numpy as np
import torch
import tyro
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import train_expert_maac as maac


@dataclass
class Args:
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


def matrix_multiply_flops(agents: int, batch: int, hidden: int) -> int:
    """Floating-point operations of all matrix multiplies of one MAAC update, a multiply-add counting as two."""
    obs_action = OBS_SIZE + NUM_ACTIONS
    encoders = (OBS_SIZE + obs_action) * hidden  # state, state-action
    shared = 3 * hidden * hidden  # query, key, value
    attention = 2 * agents * hidden  # logits and weighted sum over all agents, all heads together
    heads = 2 * hidden * hidden + hidden * NUM_ACTIONS
    critic = encoders + shared + attention + heads  # multiply-adds an agent and a transition, one forward pass
    policy = OBS_SIZE * hidden + hidden * hidden + hidden * NUM_ACTIONS
    # A backward pass multiplies twice as much as its forward pass, less the gradient of the inputs.
    critic_passes = 3 * critic + 2 * critic - encoders  # target, online, online for the policies; one backward
    policy_passes = 2 * policy + 2 * policy - OBS_SIZE * hidden  # target, online; one backward
    return 2 * agents * batch * (critic_passes + policy_passes)


def make_update(agents: int, batch: int):
    torch.manual_seed(0)
    args = maac.Args(batch_size=batch)
    nets = maac.make_networks(np.full(agents, OBS_SIZE), np.full(agents, NUM_ACTIONS), args)
    obs, next_obs = torch.randn(2, agents, batch, OBS_SIZE)
    actions = torch.randint(NUM_ACTIONS, (agents, batch))
    data = (obs, next_obs, actions, torch.randn(agents, batch) / 25, torch.zeros(batch))
    return lambda: maac.update(data, nets, args)


def seconds(function, repeats: int = 1) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        function()
    return (time.perf_counter() - start) / repeats


def main(args: Args) -> None:
    if min(*args.agents, 99) < 2 or min(args.threads) < 1 or args.rounds < 1 or args.batch_size < 2:
        print("error: needs at least 2 agents, 1 thread, 1 round and a batch of 2", file=sys.stderr)
        sys.exit(2)
    left, right = torch.randn(3000, 128), torch.randn(128, 128)
    rows = []
    cases = [(threads, agents) for threads in args.threads for agents in args.agents]
    for threads, agents in tqdm(cases, desc="measuring", file=sys.stderr):
        torch.set_num_threads(threads)
        update = make_update(agents, args.batch_size)
        seconds(update, 3)
        seconds(lambda: left @ right, 50)
        times, products = [], []
        for _ in range(args.rounds):
            times.append(seconds(update))
            products.append(seconds(lambda: left @ right, 20))
        flops = matrix_multiply_flops(agents, args.batch_size, maac.Args.hidden_size)
        rate = 2 * 3000 * 128 * 128 / min(products)
        rows.append(
            {
                "threads": threads,
                "agents": agents,
                "milliseconds": 1e3 * min(times),
                "median_milliseconds": 1e3 * sorted(times)[len(times) // 2],
                "machine_gflops": rate / 1e9,
                "share": flops / min(times) / rate,
            }
        )
    print("| threads | agents | ms an update (best) | median | machine GFLOP/s | share of that rate |")
    print("|---:|---:|---:|---:|---:|---:|")
    for row in rows:
        print(
            f"| {row['threads']} | {row['agents']} | {row['milliseconds']:.1f} | {row['median_milliseconds']:.1f} "
            f"| {row['machine_gflops']:.0f} | {row['share']:.2f} |"
        )
    best = {(row["threads"], row["agents"]): row["milliseconds"] for row in rows}
    for threads in args.threads:
        if (threads, 8) in best and (threads, 16) in best:
            ratio = best[threads, 16] / best[threads, 8]
            print(f"{threads} thread(s): 16 agents take {ratio:.2f} times as long as 8")
    if args.json:
        facts = {"torch": torch.__version__, "machine": platform.machine(), "rows": rows}
        Path(args.json).write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))
