"""Scores and normalized score similarity (NSS) of saved policies: of runs, of experts and of random play.

NSS of an agent is (score - random score) / (expert's score - random score), and NSS of a task is the mean over its
agents: 0 is random play, 1 is the expert. A score is the task's own return of an episode; the learned reward plays no
part in it. docs/evaluation.md explains the numbers and their intervals.

    python eval_nss.py experts/cooperative_navigation
    python eval_nss.py runs/cooperative_navigation__madaac_discrete__1__1700000000 --video both.mp4
    python eval_nss.py --policy random --env-id simple_tag
"""

import contextlib
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import tyro


@dataclass
class Args:
    runs: tyro.conf.Positional[tuple[str, ...]] = ()
    """run folders of any script, or folders like experts/<env_id>"""
    policy: Literal["", "random", "expert"] = ""
    """evaluate random play or the shipped expert of --env-id instead of run folders"""
    env_id: str = ""
    """the task of --policy, or of run folders on a task that is neither ours nor mpe2's"""
    episodes: int = 500
    """fresh episodes per policy, as many for the stochastic as for the greedy one"""
    seed: int = 0
    """seed of the episodes; all policies start from the same states, and every 500 episodes use the next seed"""
    among_experts: bool = False
    """also score each agent alone among experts, which compares agents in the same company where they compete"""
    video: str = ""
    """write a video of one run to this .mp4 or .gif, side by side with the expert from the same initial states"""
    json: bool = False
    """print JSON instead of tables"""
    torch_threads: int = 1
    """threads that torch may use; 0 leaves the choice to torch"""


if __name__ == "__main__":
    args = tyro.cli(Args, description=__doc__)  # before the slow imports, so that --help and mistakes answer at once

import numpy as np
import torch

from env_utils import Policy, make_envs, random_actions, require_known_task, task_name
from madaac_utils.demos import load_card, load_demos, play_randomly, reference_scores, require_same_demos
from madaac_utils.evaluation import EVALUATION_SEED, among_experts, evaluate, load_expert, score_table
from madaac_utils.files import EXPERTS, UserError, exit_on_user_error, for_json, read_config, require_writable
from madaac_utils.policies import load_policy
from madaac_utils.scores import Reference, reference_warnings
from madaac_utils.video import VIDEO_FORMATS, require_can_draw, write_video


class Job(NamedTuple):
    title: str
    env_id: str
    players: dict[str, Policy]
    expert: dict  # which expert NSS refers to: demos=file or expert_folder=folder; the shipped expert if empty
    remarks: list[str]


def read_run(folder: Path, args: Args) -> Job:
    """The policy in a run folder or in the folder of an expert."""
    is_run, remarks = (folder / "config.json").is_file(), []
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}")
    if not is_run and not (folder / "card.json").is_file():
        raise UserError(f"{folder} is not a run folder or a folder like experts/<env_id>: it has no config or card")
    content = read_config(folder) if is_run else load_card("", folder)
    env_id = content["args"]["env_id"] if is_run else str(content.get("env_id"))
    if args.env_id and task_name(args.env_id) != task_name(env_id):
        raise UserError(f"{folder} is for the task {env_id}, not for --env-id {args.env_id}")
    if not args.env_id:
        require_known_task(env_id, folder)
    if is_run and not (folder / "summary.json").is_file():
        remarks.append("this run has not ended; its policy is the one that it saved last")
    env_id = args.env_id or env_id
    policy = load_policy(folder / "policy.safetensors", make_envs(env_id, 1))
    players = {"stochastic": policy.stochastic(args.seed), "greedy": policy.greedy}
    expert = {"demos": require_same_demos(content)} if is_run else {"expert_folder": folder}
    return Job(str(folder), env_id, players, expert, remarks)


def jobs_of(args: Args) -> list[Job]:
    """What the command line asks for, checked before anything is played."""
    if args.episodes < 2 or min(args.seed, args.torch_threads) < 0:
        raise UserError("--episodes must be at least 2, --seed and --torch-threads at least 0")
    if bool(args.policy) == bool(args.runs) or (args.policy and not args.env_id):
        raise UserError("name either run folders, or --policy random or --policy expert with --env-id")
    if args.policy == "random":
        act = random_actions(make_envs(args.env_id, 1).num_actions, args.seed)
        jobs = [Job("random play", args.env_id, {"played": act}, {}, [])]
    elif args.policy == "expert":
        make_envs(args.env_id, 1)  # raises an error if there is no such task
        load_card(args.env_id)  # raises an error if it has no expert
        jobs = [read_run(EXPERTS / task_name(args.env_id), args)]
    else:
        jobs = [read_run(Path(name), args) for name in args.runs]
    if args.among_experts:
        for job in jobs:
            load_expert(job.env_id, **job.expert)
    if args.video:
        if len(jobs) != 1 or args.policy == "random":
            raise UserError(f"--video shows one run beside its expert; name one run folder, got {len(jobs)}")
        if Path(args.video).suffix not in VIDEO_FORMATS:
            raise UserError(f"--video must end in {' or '.join(VIDEO_FORMATS)}, got {args.video}")
        require_can_draw(make_envs(jobs[0].env_id, 1), "--video")
        require_writable(Path(args.video).parent)
    return jobs


def references_of(env_id: str, demos: str = "", expert_folder: Path | None = None) -> tuple[dict[str, Reference], dict]:
    """Scores of the expert and of random play, and where they come from."""
    card = (expert_folder or EXPERTS / task_name(env_id)) / "card.json"
    if demos:
        origin = {"expert_from": demos, "reference_episodes": {"expert": len(load_demos(Path(demos))), "random": 500}}
    elif card.is_file():
        episodes = load_card(env_id, card.parent).get("episodes")
        origin = {"expert_from": os.path.relpath(card), "reference_episodes": {"expert": episodes, "random": episodes}}
    else:  # a task without an expert has scores but no NSS
        unknown = np.full(len(make_envs(env_id, 1).agents), np.nan)
        origin = {"expert_from": None, "reference_episodes": {"expert": 0, "random": 500}}
        return {"expert": (unknown, unknown), "random": play_randomly(env_id)}, origin
    return reference_scores(env_id, demos, expert_folder), origin


def as_numbers(references: dict[str, Reference]) -> dict:
    return {name: {"score": mean.tolist(), "interval_95": half.tolist()} for name, (mean, half) in references.items()}


def evaluate_job(job: Job, args: Args) -> dict:
    """Play, print the tables unless --json asks for none, and return all numbers."""
    agents = list(make_envs(job.env_id, 1).agents)
    references, origin = references_of(job.env_id, **job.expert)
    warnings = reference_warnings(agents, references)
    players = evaluate(job.env_id, job.players, references, args.episodes, args.seed)
    results = {"run": job.title, "remarks": job.remarks, "env_id": job.env_id, "episodes": args.episodes}
    results |= {"agents": agents, "warnings": warnings, **origin, **as_numbers(references), **players}
    number = origin["reference_episodes"]
    expert = f"{number['expert']}, from {origin['expert_from']}" if number["expert"] else "none, so there is no NSS"
    lines = [f"\n{job.title}\n{job.env_id}, {args.episodes} episodes, 95 % intervals over episodes"]
    lines.append(f"reference episodes: random play {number['random']}; expert {expert}")
    lines.append(score_table(agents, references, players, warnings))
    if args.among_experts:
        expert = load_expert(job.env_id, **job.expert).greedy
        alone = among_experts(job.env_id, job.players, expert, args.episodes, args.seed)
        results["among_experts"] = {"warnings": alone.warnings, **as_numbers(alone.references), **alone.players}
        lines.append("\neach agent alone among experts, from the same initial states")
        lines.append(score_table(agents, *alone))
    elif warnings:
        with contextlib.suppress(UserError):  # some demonstrations have no expert to play beside
            load_expert(job.env_id, **job.expert)
            lines.append("note: where agents compete, --among-experts compares each of them in the expert's company")
    lines += [f"note: {remark}" for remark in job.remarks]
    if not args.json:
        print("\n".join(lines))
    return results


def main(args: Args) -> None:
    jobs = jobs_of(args)
    if args.torch_threads:
        torch.set_num_threads(args.torch_threads)
    results = [evaluate_job(job, args) for job in jobs]
    if args.json:
        print(json.dumps(for_json(results), indent=2))
    if args.video:
        players = {"learner": jobs[0].players["greedy"]}
        if "expert_folder" in jobs[0].expert:  # it is an expert itself
            players = {"expert": jobs[0].players["greedy"]}
        else:
            with contextlib.suppress(UserError):  # the expert is not always known; the learner is then shown alone
                players = {"expert": load_expert(jobs[0].env_id, **jobs[0].expert).greedy, **players}
        write_video(Path(args.video), jobs[0].env_id, players, EVALUATION_SEED + args.seed)
        print(f"video: {args.video}", file=sys.stderr)


if __name__ == "__main__":
    with exit_on_user_error():
        main(args)
