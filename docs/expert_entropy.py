"""How sure experts are of the actions they demonstrate: a row for each expert folder.

    python docs/expert_entropy.py experts/*

Demonstrations are the most probable actions; what is lost by that is how much more probable they were. Prints the mean
score, the mean probability of the demonstrated actions and the policies' mean entropy as a share of uniform play's,
all averaged over agents and the observations of the stored demonstrations.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import tyro

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from env_utils import UserError, exit_on_user_error, load_demos, load_policy


@dataclass
class Args:
    folders: tyro.conf.Positional[tuple[Path, ...]]
    """folders with policy.safetensors, demos.npz and card.json, as train_expert_maac.py writes them"""


def main(args: Args) -> None:
    if not args.folders:
        raise UserError("name at least one expert folder, such as experts/cooperative_navigation")
    print("| expert | score | probability of its actions | entropy, of uniform play's |\n|---|---:|---:|---:|")
    for folder in args.folders:
        card = folder / "card.json"
        if not card.is_file():
            raise UserError(f"{folder} is not an expert's folder, it has no card.json")
        scores = json.loads(card.read_text())["scores"]["expert"]
        score = np.mean([scores[agent]["mean"] for agent in scores])
        policy = load_policy(folder / "policy.safetensors")
        obs, actions, _ = load_demos(folder / "demos.npz").transitions()  # [n, agents, widest], [n, agents]
        probs = policy.logits(obs).softmax(-1)
        taken = probs.gather(-1, torch.as_tensor(actions)[..., None]).mean()
        entropy = (torch.special.entr(probs).sum(-1) / policy.num_actions.log()).mean()
        print(f"| `{folder}` | {score:.1f} | {taken:.2f} | {entropy:.2f} |")


if __name__ == "__main__":
    with exit_on_user_error():
        main(tyro.cli(Args, description=__doc__))
