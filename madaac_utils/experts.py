"""Experts: choosing the policy, scoring it, and writing experts/<env_id>/ with its demonstrations and its card."""

import math
from pathlib import Path

import numpy as np
import torch

from env_utils import play_episodes, random_actions, record_episodes, task_name
from madaac_utils.checkpoints import load_checkpoint
from madaac_utils.demos import RANDOM_SEED, demos_from_episodes, save_demos
from madaac_utils.evaluation import score_table
from madaac_utils.files import FORMAT_VERSION, read_config, read_json, remove_left_overs, sha256, write_json
from madaac_utils.networks import save_tensors
from madaac_utils.policies import SavedPolicy
from madaac_utils.provenance import commit, versions
from madaac_utils.scores import by_agent, mean_and_interval, scores_with_intervals

RECORDING_SEED = 10_000_019  # of the episodes that score an expert and become its demonstrations
# Of the episodes that choose the policy that becomes the expert. They are the same at every evaluation, because initial
# states differ more than policies do.
SELECTION_SEED = 30_000_001


class Kept:
    """The policy that becomes the expert, by its score in the evaluations during training."""

    def __init__(self):
        self.score, self.step, self.tensors, self.header = -math.inf, 0, {}, {}

    def state_dict(self) -> dict:
        return vars(self)

    def load_state_dict(self, state: dict) -> None:
        if not all(torch.is_tensor(tensor) for tensor in state["tensors"].values()):
            raise ValueError("the policy that was kept does not consist of tensors")
        vars(self).update(state)


def agents_compete(env_id: str, num_actions: np.ndarray) -> bool:
    """Whether the scores of some agents run against one another in random play, so that no mean says who is best."""
    scores = play_episodes(env_id, random_actions(num_actions, seed=0), 200, seed=0)
    scores = scores[:, scores.std(0) > 0]
    # Over 200 episodes the lowest correlation of unrelated pairs, as in rover_tower, is about -0.1; of rivals, -0.6.
    return scores.shape[1] > 1 and bool(np.corrcoef(scores.T).min() < -0.3)


def training_of(folder: Path, episode_length: int) -> dict | None:
    """For the card: how the policy in a folder was trained, also if the run has not ended yet."""
    for name in ("card.json", "summary.json"):
        if (folder / name).is_file():
            return read_json(folder / name, "a description of the policy beside it").get("training")
    state = load_checkpoint(folder) if (folder / "checkpoint.pt").is_file() else {"parts": {}}
    if "kept" not in state["parts"]:
        return None  # a run of another script, or a file alone
    config = read_config(folder)
    others = ("resume", "resume_changed", "record_only", "runs", "experts", "eval_episodes", "store_demos")
    return {
        "script": config["script"],
        "args": {name: value for name, value in config["args"].items() if name not in others},
        "commit": config.get("commit"),
        "kept_at_step": state["parts"]["kept"]["step"],
        "steps": state["step"],
        "episodes": state["step"] // episode_length,
        "seconds": round(state["seconds"]),
    }


def record_expert(policy: SavedPolicy, envs, args, training: dict | None, script: Path) -> dict:
    """Score the expert and random play on fresh episodes; write the policy, its demonstrations and the card."""
    folder, agents = Path(args.experts) / task_name(args.env_id), list(envs.agents)
    episodes = record_episodes(args.env_id, policy.greedy, args.eval_episodes, RECORDING_SEED)
    random_policy = random_actions(envs.num_actions, seed=RANDOM_SEED)
    random_returns = play_episodes(args.env_id, random_policy, args.eval_episodes, seed=RANDOM_SEED)
    returns = {"expert": episodes.returns, "random": random_returns}
    described = {name: scores_with_intervals(values) for name, values in returns.items()}
    scores = {name: by_agent(agents, found) for name, found in described.items()}
    made_by = f"{script.name}, the most probable action of each agent"
    demos = demos_from_episodes(args.env_id, episodes, {"made_by": made_by, "episodes_played": args.eval_episodes})
    remove_left_overs(folder)
    save_tensors(folder / "policy.safetensors", policy.tensors, policy.header, envs)
    save_demos(folder / "demos.npz", demos[: args.store_demos])
    card = {
        "format_version": FORMAT_VERSION,
        "env_id": args.env_id,
        "episodes": args.eval_episodes,
        "demonstrations": args.store_demos,
        "scores": scores,
        "mean_over_agents": {
            name: {"mean": found["score_mean"], "interval_95": found["score_mean_interval_95"]}
            for name, found in described.items()
        },
        "training": training,
        "versions": versions(),
        "commit": commit(script),
        "sha256": {name: sha256(folder / name) for name in ("policy.safetensors", "demos.npz")},
    }
    write_json(folder / "card.json", card)
    references = {name: mean_and_interval(values) for name, values in returns.items()}
    print(f"\n{args.eval_episodes} episodes each, 95 % intervals over episodes")
    print(score_table(agents, references, {}))
    if (references["expert"][0] < references["random"][0]).all():
        print("warning: no agent of this expert scores better than random play, so that NSS against it means nothing")
    print(f"written: {folder}/policy.safetensors, demos.npz ({args.store_demos} episodes), card.json")
    return scores
