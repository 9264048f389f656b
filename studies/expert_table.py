"""The table of shipped experts in docs/train_expert_maac.md, from their cards.

python studies/expert_table.py
"""

import dataclasses
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import train_expert_maac
from madaac_utils.files import EXPERTS
from madaac_utils.paper import paper_episodes
from particle_envs import TASK_IDS

EPISODE_LENGTH = 25
NOT_PART_OF_A_COMMAND = {"exp_name", "env_id", "torch_threads", "save_every", "total_timesteps"}


def scores(card: dict, who: str) -> str:
    """The mean over agents for rover_tower, otherwise one number per role."""
    by_agent, mean = card["scores"][who], card["mean_over_agents"][who]
    found = [mean] if card["env_id"].startswith("rover_tower") else by_agent.values()
    cells = [f"{score['mean']:.1f} ± {score['interval_95']:.1f}" for score in found]
    return " / ".join(dict.fromkeys(cells)).replace("-", "−")  # agents with the same scores share one number


def arguments(card: dict) -> str:
    """The arguments of train_expert_maac.py that differ from its defaults, under their present names."""
    args, defaults = dict(card["training"]["args"]), dataclasses.asdict(train_expert_maac.Args())
    if "selection_episodes" not in args:
        args["selection_episodes"] = args.pop("eval_episodes")
    if "regularization" in args:
        args["attention_regularization"] = args["logit_regularization"] = args.pop("regularization")
    words = [f"--env-id {card['env_id']}"]
    if card["training"]["episodes"] != paper_episodes(card["env_id"]):
        words.append(f"--total-timesteps {card['training']['steps']}")
    for name, value in args.items():
        if name in defaults and name not in NOT_PART_OF_A_COMMAND and value != defaults[name]:
            flag = f"--{name.replace('_', '-')}"
            words.append(flag if value is True else f"{flag} {value}")
    return " ".join(words)


def main() -> None:
    print("| task | expert | random play | episodes of training | arguments |")
    print("|---|---:|---:|---:|---|")
    for task in TASK_IDS:
        card = json.loads((EXPERTS / task / "card.json").read_text())
        cells = [f"`{task}`", scores(card, "expert"), scores(card, "random")]
        cells += [f"{card['training']['steps'] // EPISODE_LENGTH:,}", f"`{arguments(card)}`"]
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
