"""Scores and normalized score similarity (NSS) of any saved run or expert, docs/evaluation.md.

    python eval_nss.py runs/cooperative_navigation__madaac_discrete__1__1700000000 experts/cooperative_navigation
    python eval_nss.py --env-id keep_away --policy random

NSS of an agent is (score - random score) / (expert's score - random score), the paper's is its mean over agents: 0 is
random play, 1 the expert. A score is the task's own return of an episode; the learned reward plays no part in it.
"""

import contextlib
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
import tyro

import env_utils
from env_utils import UserError, load_demos, load_policy, make_envs, mean_and_interval, play_episodes, sha256


@dataclass
class Args:
    runs: tyro.conf.Positional[tuple[str, ...]] = ()
    """run folders of any script, or folders like experts/<env_id>"""
    episodes: int = 500
    """fresh episodes a policy, stochastic and greedy each"""
    seed: int = 0
    """seed of the episodes; the same for every run, so that they start from the same states (each further 500 episodes
    take the next seed: others altogether are those of a seed as far away)"""
    policy: Literal["", "random", "expert"] = ""
    """evaluate uniformly random play, or the shipped expert, of --env-id"""
    env_id: str = ""
    """the task of --policy"""
    among_experts: bool = False
    """also put each agent alone among experts: all others play the most probable actions of the expert whose
    demonstrations were learned from, so that agents are compared in the same company, also where they compete (three or
    more plays of the episodes for every agent; needs the expert's own folder, not just a file of demonstrations)"""
    torch_threads: int = 0
    """threads that torch may use; 0 leaves it to torch (one is best beside other runs)"""
    json: bool = False
    """print JSON for machines instead of tables"""
    video: str = ""
    """write a video of the shipped expert and the learner side by side, both with their most probable actions and from
    the same initial states, to this .mp4 (one run)"""


def read_run(folder: Path) -> tuple[str, env_utils.SavedPolicy, dict, list[str]]:
    """The task, the policy, where NSS has its references from (see references_of), and remarks."""
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder; give a run folder, or one like experts/<env_id>")
    config, saved, checkpoint = (folder / name for name in ("config.json", "policy.safetensors", "checkpoint.pt"))
    is_expert = (folder / "card.json").is_file() and not config.is_file()
    if not config.is_file() and not is_expert:
        raise UserError(f"{folder} is not a run: it has neither config.json nor card.json")
    remarks = []
    cut_short = not is_expert and not (folder / "summary.json").is_file()
    if cut_short:
        remarks.append("this run was cut short: it has no summary.json")
    try:
        if is_expert:
            env_id = json.loads((folder / "card.json").read_text())["env_id"]
            references = {"expert_folder": folder}
        else:
            content = json.loads(config.read_text())
            env_id, references = content["args"]["env_id"], {"demos_path": env_utils.demos_of_run(content)}
    except (ValueError, KeyError, TypeError, AttributeError) as error:  # not JSON or not text, or not ours
        raise UserError(f"{folder / 'card.json' if is_expert else config} is not that of a run ({error!r})") from None
    envs = make_envs(env_id, 1)  # a task that is not installed is told here
    if saved.is_file():
        policy = load_policy(saved, envs)
        if cut_short:
            remarks.append("evaluated: its policy.safetensors, the best one that it had kept")
    elif checkpoint.is_file():
        state = env_utils.load_checkpoint(checkpoint)
        if not isinstance(state, dict) or not {"step", "policies"} <= state.keys():
            raise UserError(f"{checkpoint} is not the checkpoint of a run: it has no policies")
        remarks.append(f"evaluated: its last checkpoint, at step {state['step']}")
        policy = policy_of_checkpoint(state, env_id, envs, checkpoint)
    else:
        raise UserError(f"{folder} has no policy yet, and no checkpoint to take one from")
    return env_id, policy, references, remarks


def policy_of_checkpoint(state: dict, env_id: str, envs, path: Path) -> env_utils.SavedPolicy:
    """The stacked layers of any script's policies, as they would have been saved at its end."""
    tensors = {}
    for name, tensor in state["policies"].items():
        *_, number, part = name.split(".")  # layers.0.weight, mlp.layers.0.weight
        tensors[f"{part}_{number}"] = tensor
    if "obs_stats" in state:  # experts normalise what they see
        tensors |= {f"obs_{name}": state["obs_stats"][name].float() for name in ("mean", "var")}
    names = ("agents", "obs_sizes", "num_actions")
    header = {"env_id": env_id, **{name: np.asarray(getattr(envs, name)).tolist() for name in names}}
    return env_utils.SavedPolicy(tensors, header).checked(path)


def nss_with_interval(returns: np.ndarray, references: dict) -> dict:
    """NSS per agent and of their mean, with half widths of 95 % intervals; returns [episodes, agents].

    The scores of learner, expert and random play all have errors. To first order, with d = E - R, those of NSS are
    A's / d, NSS E's / d and (1 - NSS) R's / d. Agents of one episode are not independent: the learner's part of the
    mean's error is taken over episodes' means, the references' parts are added up over agents, which is the most
    they can be.
    """
    (expert, expert_half), (random, random_half) = references["expert"], references["random"]
    gap = expert - random
    by_episode = env_utils.normalized_score_similarity(returns, expert, random)
    nss, learner_half = mean_and_interval(by_episode)
    known = ~np.isnan(nss)  # an agent without a gap, or without an expert, has none
    reference_half = np.hypot(nss * expert_half, (1 - nss) * random_half) / np.where(known, np.abs(gap), np.nan)
    if not known.any():
        return {"nss": nss, "interval": learner_half, "mean": float("nan"), "mean_interval": float("nan")}
    mean, mean_half = mean_and_interval(by_episode[:, known].mean(1, keepdims=True))
    return {
        "nss": nss,
        "interval": np.hypot(learner_half, reference_half),
        "mean": float(mean[0]),
        "mean_interval": float(np.hypot(mean_half[0], reference_half[known].mean())),
    }


def paired_nss(returns: np.ndarray, expert: np.ndarray, random: np.ndarray) -> dict:
    """NSS as above where all three played from the same initial states; each [episodes, agents].

    With a, e and r the three returns of an episode, NSS = mean(a - r) / mean(e - r), and to first order its error is
    that of the mean of ((a - r) - NSS (e - r)) / mean(e - r): what an episode does to all three cancels.
    """
    gap = (expert - random).mean(0)
    gap = np.where(gap == 0, np.nan, gap)
    nss = (returns - random).mean(0) / gap
    errors = (returns - random - nss * (expert - random)) / gap  # [episodes, agents]
    # Each agent has a zero of its own, what random play in its place does to experts: a mean over agents says nothing.
    return {"nss": nss, "interval": mean_and_interval(errors)[1], "mean": float("nan"), "mean_interval": float("nan")}


def references_of(env_id: str, demos_path: str = "", expert_folder: Path | None = None) -> tuple[dict, dict]:
    """Scores of expert and random play with their intervals, and of how many episodes they are."""
    if demos_path:
        episodes = {"expert": len(load_demos(Path(demos_path))), "random": 500}
    elif expert_folder or (env_utils.EXPERTS / env_id / "card.json").is_file():
        episodes = dict.fromkeys(("expert", "random"), env_utils.load_card(env_id, expert_folder).get("episodes"))
    else:  # scores can be had without an expert, NSS cannot
        unknown = np.full(len(make_envs(env_id, 1).agents), np.nan)
        random = env_utils.play_randomly(env_id, 500)
        return {"expert": (unknown, unknown), "random": random}, {"expert": 0, "random": 500}
    return env_utils.references_with_intervals(env_id, demos_path, expert_folder), episodes


def expert_of(env_id: str, demos_path: str = "", expert_folder: Path | None = None) -> env_utils.SavedPolicy:
    """The policy behind the demonstrations: the shipped one, or one in a folder as train_expert_maac.py writes it."""
    if demos_path:
        load_demos(Path(demos_path))  # says what is wrong with the file, if anything is
        expert_folder = Path(demos_path).parent
        needs = f"--among-experts needs the expert of {demos_path}"
        for name in ("card.json", "policy.safetensors"):
            if not (expert_folder / name).is_file():
                raise UserError(f"{needs}: there is no {name} beside it")
        if env_utils.load_card(env_id, expert_folder).get("sha256", {}).get("demos.npz") != sha256(demos_path):
            raise UserError(f"{needs}: the card.json beside it is of other demonstrations")
    else:
        env_utils.load_card(env_id, expert_folder)  # says how to make one if there is none
    return load_policy((expert_folder or env_utils.EXPERTS / env_id) / "policy.safetensors", make_envs(env_id, 1))


def evaluate(env_id: str, players: dict, references_from: dict, args: Args) -> dict:
    """Scores and NSS of each player, a name and a policy for `play_episodes`."""
    references, reference_episodes = references_of(env_id, **references_from)
    found = described(env_id, args, references, reference_episodes, references_from)
    for name, act in players.items():
        returns = play_episodes(env_id, act, args.episodes, seed=env_utils.EVALUATION_SEED + args.seed)[0]
        found[name] = described_player(returns, nss_with_interval(returns, references))
    return found


def among_experts(env_id: str, players: dict, references_from: dict, args: Args) -> dict:
    """As `evaluate`, but an agent at a time: it acts as the player, the expert or at random, all others as the expert.

    All episodes start from the same states, so that players and references are compared in pairs.
    """
    envs = make_envs(env_id, 1)
    expert = expert_of(env_id, **references_from).greedy
    seed = env_utils.EVALUATION_SEED + args.seed

    def alone(i: int, act):
        is_alone = np.arange(len(envs.agents)) == i
        return lambda obs: np.where(is_alone, act(obs), expert(obs))

    def play_alone(act) -> np.ndarray:  # returns [episodes, agents], each agent's of episodes of its own
        plays = [play_episodes(env_id, alone(i, act), args.episodes, seed)[0] for i in range(len(envs.agents))]
        return np.stack([returns[:, i] for i, returns in enumerate(plays)], axis=1)

    returns = {
        "expert": play_episodes(env_id, expert, args.episodes, seed)[0],
        "random": play_alone(env_utils.random_actions(envs.num_actions, args.seed)),
    }
    references = {name: mean_and_interval(values) for name, values in returns.items()}
    found = described(env_id, args, references, dict.fromkeys(returns, args.episodes), references_from)
    gap, half = mean_and_interval(returns["expert"] - returns["random"])
    found["too_close"] = [agent for agent, is_close in zip(envs.agents, np.abs(gap) <= 3 * half) if is_close]
    for name, act in players.items():
        played = play_alone(act)
        found[name] = described_player(played, paired_nss(played, **returns))
    return found


def described(env_id: str, args: Args, references: dict, reference_episodes: dict, references_from: dict) -> dict:
    agents = list(make_envs(env_id, 1).agents)
    found = {"env_id": env_id, "episodes": args.episodes, "reference_episodes": reference_episodes, "agents": agents}
    folder = references_from.get("expert_folder") or env_utils.EXPERTS / env_id
    found["expert_from"] = references_from.get("demos_path") or os.path.relpath(Path(folder) / "card.json")
    found["too_close"] = env_utils.too_close(agents, references) if reference_episodes["expert"] else []
    found["below_random"] = env_utils.below_random(agents, references)
    for name, (mean, half) in references.items():
        found[name] = {"score": mean.tolist(), "interval_95": half.tolist()}
    return found


def described_player(returns: np.ndarray, nss: dict) -> dict:
    mean, half = mean_and_interval(returns)
    over_agents, over_agents_half = mean_and_interval(returns.mean(1, keepdims=True))
    return {
        "score": mean.tolist(),
        "interval_95": half.tolist(),
        "score_mean": float(over_agents[0]),
        "score_mean_interval_95": float(over_agents_half[0]),
        "nss": nss["nss"].tolist(),
        "nss_interval_95": nss["interval"].tolist(),
        "nss_mean": nss["mean"],
        "nss_mean_interval_95": nss["mean_interval"],
    }


def with_interval(mean: float, half: float, digits: int) -> str:
    return "-" if np.isnan(mean) else f"{mean:.{digits}f} ± {half:.{digits}f}"


def print_table(title: str, found: dict, players: list[str]) -> None:
    columns = ["random", "expert", *players]
    of = found["reference_episodes"]
    print(f"\n{title}\n{found['env_id']}, {found['episodes']} episodes, 95 % intervals over episodes", end="")
    expert = f"{of['expert']}, of {found['expert_from']}" if of["expert"] else "none known, so there is no NSS"
    print(f" (random play: {of['random']} episodes, expert: {expert})")
    width = max(18, *(len(agent) + 2 for agent in found["agents"]))
    heads = ["agent", *columns, *(f"NSS {name}" for name in players)]
    print("".join(f"{head:>{width}}" for head in heads))
    for i, agent in enumerate(found["agents"]):
        cells = [with_interval(found[name]["score"][i], found[name]["interval_95"][i], 2) for name in columns]
        cells += [with_interval(found[name]["nss"][i], found[name]["nss_interval_95"][i], 3) for name in players]
        print("".join(f"{cell:>{width}}" for cell in (agent, *cells)))
    means = [f"{np.mean(found[name]['score']):.2f}".replace("nan", "-") for name in ("random", "expert")]
    means += [with_interval(found[name]["score_mean"], found[name]["score_mean_interval_95"], 2) for name in players]
    means += [with_interval(found[name]["nss_mean"], found[name]["nss_mean_interval_95"], 3) for name in players]
    print("".join(f"{cell:>{width}}" for cell in ("mean", *means)))
    env_utils.warn_of_references(found["too_close"], found["below_random"])


def main(args: Args) -> None:
    if args.episodes < 2:
        raise UserError("--episodes must be at least 2")
    if min(args.seed, args.torch_threads) < 0:
        raise UserError("--seed and --torch-threads must be at least 0")
    if args.torch_threads:
        torch.set_num_threads(args.torch_threads)
    if bool(args.policy) == bool(args.runs):
        both = ", not both" if args.policy else ""
        raise UserError(f"name run folders, or --policy random|expert with --env-id{both}")
    if bool(args.policy) != bool(args.env_id):
        raise UserError("--policy random|expert needs --env-id, and --env-id is for --policy only")
    if args.video and (args.policy or len(args.runs) != 1):
        raise UserError("--video shows one run beside the expert: name one run folder")
    if args.video and Path(args.video).suffix != ".mp4":
        raise UserError(f"--video must end in .mp4, got {args.video}")
    jobs = []  # title, task, players, references, remarks
    if args.policy == "random":
        act = env_utils.random_actions(make_envs(args.env_id, 1).num_actions, args.seed)
        jobs.append(("random play", args.env_id, {"played": act}, {}, []))
    for name in [env_utils.EXPERTS / args.env_id] if args.policy == "expert" else args.runs:
        if args.policy == "expert":
            make_envs(args.env_id, 1)  # a task that is not there is told here
            env_utils.load_card(args.env_id)  # says how to make one if there is none
        env_id, policy, references, remarks = read_run(Path(name))
        players = {"stochastic": policy.stochastic(args.seed), "greedy": policy.greedy}
        jobs.append((str(name), env_id, players, references, remarks))
    if args.among_experts:
        for _, env_id, _, references, _ in jobs:
            expert_of(env_id, **references)  # what is missing is told before anything is played
    if args.video:
        envs = make_envs(jobs[0][1], 1)
        env_utils.require_can_draw(envs, "--video")
        env_utils.require_writable(Path(args.video).parent)
        expert = load_policy(env_utils.EXPERTS / envs.env_id / "policy.safetensors", envs)
    results = []
    for title, env_id, players, references, remarks in jobs:
        found = evaluate(env_id, players, references, args)
        results.append({"run": title, "remarks": remarks, **found})
        if not args.json:
            print_table(title, found, list(players))
        if args.among_experts:
            results[-1]["among_experts"] = alone = among_experts(env_id, players, references, args)
            if not args.json:
                print_table(f"{title}: each agent alone among experts", alone, list(players))
        if not args.json:
            for remark in remarks:
                print(f"note: {remark}")
            if (found["too_close"] or found["below_random"]) and not args.among_experts:
                with contextlib.suppress(UserError):  # some demonstrations are without an expert to play beside
                    expert_of(env_id, **references)
                    print("note: where agents compete, --among-experts compares each of them in the expert's company")
    if args.json:
        print(json.dumps(env_utils.for_json(results), indent=2))
    if args.video:
        title, env_id, players, _, _ = jobs[0]
        side_by_side = {"expert": expert.greedy, "learner": players["greedy"]}
        env_utils.write_video(Path(args.video), env_id, side_by_side, env_utils.EVALUATION_SEED + args.seed)
        print(f"video: {args.video}", file=sys.stderr)


if __name__ == "__main__":
    with env_utils.exit_on_user_error():
        main(tyro.cli(Args, description=__doc__))
