"""Environment steps per second on one CPU core: our particle tasks next to mpe2, VMAS and JaxMARL.

    pip install -r requirements-bench.txt
    python benchmarks/env_speed.py                                # every task at 1, 100 and 1000 copies
    python benchmarks/env_speed.py --env-ids simple_tag --num-envs 100 --json speed.json

One step is one copy of the environment advanced by one joint action. Resets at the end of each episode of 25 steps are
part of the measured time; drawing the uniformly random actions is not. Every library uses one core. A cell is the best
of three rounds of `--seconds` each. The libraries take turns within a round, so that other work on a shared machine
slows all of them alike.

- ours: one `step` call for the whole batch.
- mpe2: it has no batches, so n copies are n objects stepped one after the other in a Python loop.
- VMAS: one `step` call for the whole batch, and one `reset` of the whole batch every 25 steps. Its agents choose among
  nine directions, all others among five actions. Its simple_spread observes less, and its simple_tag computes ten
  substeps of physics per step.
- JaxMARL: one jitted call per step for the whole batch. The benchmark waits for the results only once, at the end. A
  learner outside JAX is slower than that, because it has to wait for every observation.
- JaxMARL scan: all 25 steps of an episode in one jitted call, which only a learner written in JAX can use.

A library that is not installed shows as "not installed". One that raises an error shows as "failed", with the error on
stderr. A cell is blank if the library has no such task. The table goes to stdout as Markdown.
"""

import contextlib
import importlib
import importlib.metadata
import math
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from unittest import mock

# Libraries read these when they are first imported, so they are set before the imports below.
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1", JAX_PLATFORMS="cpu")
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
import tyro
from tqdm import tqdm

from env_utils import make_envs
from madaac_utils.files import UserError, exit_on_user_error, write_json
from particle_envs import TASK_IDS, unknown_id_message

EPISODE_LENGTH = 25
ROUNDS = 3
SEED = 0
# The tasks that the other libraries have too, with their versions in mpe2 and JaxMARL; VMAS has no versions.
SHARED_TASKS = {
    "simple_tag": "v3",
    "simple_spread": "v3",
    "simple_push": "v3",
    "simple_speaker_listener": "v4",
    "simple_adversary": "v3",
}


@dataclass
class Args:
    env_ids: tuple[str, ...] = tuple(TASK_IDS)
    """tasks to measure"""
    num_envs: tuple[int, ...] = (1, 100, 1000)
    """numbers of environment copies to measure each task at"""
    seconds: float = 1.0
    """length of one measurement; each cell takes three of them"""
    json: str = ""
    """write the numbers of every round to this file, with the processor and the versions behind them"""


@dataclass
class Runner:
    """One library's environments, ready to be timed."""

    advance: Callable[[], object]  # takes one or more joint actions, and resets where episodes end
    steps: int  # steps of all copies in one call of `advance`
    wait: Callable[[], object] = lambda: None  # waits until everything that `advance` has started is done


def our_runner(env_id: str, num_envs: int) -> Runner:
    envs = make_envs(env_id, num_envs, SEED)
    shape = (EPISODE_LENGTH, num_envs, len(envs.agents))
    actions = np.random.default_rng(SEED).integers(0, np.asarray(envs.num_actions), shape)
    assert envs.episode_length == EPISODE_LENGTH
    envs.reset()

    def play_episode():
        for joint_action in actions:
            envs.step(joint_action)

    return Runner(play_episode, EPISODE_LENGTH * num_envs)


def mpe2_runner(env_id: str, num_envs: int) -> Runner:
    module = importlib.import_module(f"mpe2.{env_id}_{SHARED_TASKS[env_id]}")
    copies = [module.parallel_env(max_cycles=EPISODE_LENGTH) for _ in range(num_envs)]
    for index, env in enumerate(copies):
        env.reset(seed=SEED + index)
    rng = np.random.default_rng(SEED)
    num_actions = {agent: copies[0].action_space(agent).n for agent in copies[0].agents}
    # One random episode for all copies: a thousand of them would only fill the processor's cache.
    episode = range(EPISODE_LENGTH)
    actions = [{agent: int(rng.integers(n)) for agent, n in num_actions.items()} for _ in episode]
    # A thousand copies take only a few steps in the given time. Their first episodes have different lengths, so that
    # even a few steps include their share of resets.
    steps_done = [index % EPISODE_LENGTH for index in range(num_envs)]

    def step_every_copy():
        for index, env in enumerate(copies):
            env.step(actions[steps_done[index]])
            steps_done[index] += 1
            if steps_done[index] == EPISODE_LENGTH:
                env.reset()
                steps_done[index] = 0

    return Runner(step_every_copy, num_envs)


def vmas_runner(env_id: str, num_envs: int) -> Runner:
    import vmas

    envs = vmas.make_env(env_id, num_envs, continuous_actions=False, max_steps=EPISODE_LENGTH, seed=SEED)
    shape = (EPISODE_LENGTH, num_envs, 1)
    generator = torch.Generator().manual_seed(SEED)
    actions = [torch.randint(space.n, shape, generator=generator) for space in envs.action_space]
    joint_actions = list(zip(*actions))

    def play_episode():
        for joint_action in joint_actions:
            envs.step(joint_action)
        envs.reset()

    envs.reset()
    return Runner(play_episode, EPISODE_LENGTH * num_envs)


def jaxmarl_runner(env_id: str, num_envs: int, scan: bool = False) -> Runner:
    import jax

    # Importing jaxmarl prints to sys.__stdout__; our stdout is for the table.
    with mock.patch.object(sys, "__stdout__", sys.stderr), contextlib.redirect_stdout(sys.stderr):
        import jaxmarl

    # JaxMARL compares its step counter before counting the step, so 24 ends an episode after 25 steps.
    env = jaxmarl.make(f"MPE_{env_id}_{SHARED_TASKS[env_id]}", max_steps=EPISODE_LENGTH - 1)
    key, reset_key, action_key = jax.random.split(jax.random.PRNGKey(SEED), 3)
    _, envs_state = jax.vmap(env.reset)(jax.random.split(reset_key, num_envs))
    actions = {
        agent: jax.random.randint(agent_key, (EPISODE_LENGTH, num_envs), 0, env.action_space(agent).n)
        for agent, agent_key in zip(env.agents, jax.random.split(action_key, env.num_agents))
    }

    def step(envs_state, keys_and_actions):
        keys, joint_action = keys_and_actions
        obs, envs_state, rewards, dones, _ = jax.vmap(env.step)(keys, envs_state, joint_action)
        # The compiler drops what is not returned, and a learner needs all of these.
        return envs_state, (obs, rewards, dones)

    @jax.jit
    def advance(key, envs_state, actions):
        key, steps_key = jax.random.split(key)
        keys_and_actions = (jax.random.split(steps_key, actions[env.agents[0]].shape), actions)
        if scan:
            return key, *jax.lax.scan(step, envs_state, keys_and_actions)
        return key, *step(envs_state, keys_and_actions)

    joint_actions = [{agent: a[t] for agent, a in actions.items()} for t in range(EPISODE_LENGTH)]
    inputs = [actions] if scan else joint_actions
    outcome = None

    def play_episode():
        nonlocal key, envs_state, outcome
        for actions in inputs:
            key, envs_state, outcome = advance(key, envs_state, actions)

    def wait():
        jax.block_until_ready((envs_state, outcome))

    return Runner(play_episode, EPISODE_LENGTH * num_envs, wait)


# For each column of another library: its package and the function that builds its environments.
PEERS = {
    "mpe2": ("mpe2", mpe2_runner),
    "VMAS": ("vmas", vmas_runner),
    "JaxMARL": ("jaxmarl", jaxmarl_runner),
    "JaxMARL scan": ("jaxmarl", partial(jaxmarl_runner, scan=True)),
}


def peer_runner(peer: str, env_id: str, num_envs: int) -> Runner | str:
    """The environments of another library, or the text for the cell if there are none."""
    package, build = PEERS[peer]
    if env_id not in SHARED_TASKS:
        return ""
    if version_of(package) is None:
        return "not installed"
    try:
        runner = build(env_id, num_envs)
        runner.advance()  # compiles, and shows whether it runs at all
        runner.wait()
        return runner
    except Exception as error:
        tqdm.write(f"{peer} failed on {env_id}: {type(error).__name__}: {error}", file=sys.stderr)
        return "failed"


def steps_per_second(runner: Runner, seconds: float) -> float:
    calls = 0
    start = time.perf_counter()
    while time.perf_counter() - start < seconds:
        runner.advance()
        calls += 1
    runner.wait()
    return calls * runner.steps / (time.perf_counter() - start)


def measure(env_id: str, num_envs: int, args: Args) -> dict:
    """One row: for every column the steps per second of each round, or the text of the cell."""
    runners = {"ours": our_runner(env_id, num_envs)}
    runners["ours"].advance()
    runners |= {peer: peer_runner(peer, env_id, num_envs) for peer in PEERS}
    row = {column: runner if isinstance(runner, str) else [] for column, runner in runners.items()}
    for _ in range(ROUNDS):
        for column, runner in runners.items():
            if isinstance(runner, Runner):
                row[column].append(steps_per_second(runner, args.seconds))
    return {"task": env_id, "copies": num_envs, **row}


def markdown_table(rows: list[dict]) -> str:
    columns = ["ours", *PEERS]
    lines = [["task", "copies", *columns, *(f"ours / {peer}" for peer in PEERS)]]
    lines.append(["---"] + ["---:"] * (len(lines[0]) - 1))
    for row in rows:
        best = {column: max(row[column]) for column in columns if isinstance(row[column], list)}
        speeds = [f"{best[column]:,.0f}" if column in best else row[column] for column in columns]
        ratios = [f"{best['ours'] / best[peer]:,.2f}" if peer in best else "" for peer in PEERS]
        lines.append([row["task"], str(row["copies"]), *speeds, *ratios])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def version_of(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def machine_facts() -> dict:
    cpu = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), cpu)
    packages = ("numpy", "torch", "mpe2", "vmas", "jax", "jaxlib", "jaxmarl")
    versions = {"python": platform.python_version()} | {name: version_of(name) for name in packages}
    return {"cpu": cpu, "system": platform.system(), "versions": versions}


def check(args: Args) -> None:
    for env_id in args.env_ids:
        if env_id not in TASK_IDS:
            raise UserError(unknown_id_message(env_id, TASK_IDS))
    if min(args.num_envs, default=1) < 1:
        raise UserError(f"--num-envs must be at least 1, got {min(args.num_envs)}")
    if not (args.seconds > 0 and math.isfinite(args.seconds)):
        raise UserError(f"--seconds must be a number above 0, got {args.seconds}")
    if args.json and (Path(args.json).is_dir() or not Path(args.json).absolute().parent.is_dir()):
        raise UserError(f"--json must name a file in a folder that exists, got {args.json}")


def main() -> None:
    args = tyro.cli(Args, description=__doc__.split("\n")[0])
    check(args)
    torch.set_num_threads(1)
    if hasattr(os, "sched_setaffinity"):
        # The last core: the first one often handles the machine's interrupts too.
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    pairs = [(env_id, num_envs) for env_id in args.env_ids for num_envs in args.num_envs]
    rows = [measure(*pair, args) for pair in tqdm(pairs, desc="env speed", unit="row")]
    print(markdown_table(rows))
    if args.json:
        facts = {**machine_facts(), "arguments": asdict(args), "rounds": ROUNDS}
        write_json(Path(args.json), {**facts, "steps_per_second": rows})


if __name__ == "__main__":
    with exit_on_user_error():
        main()
