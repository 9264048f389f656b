"""How sure experts are of the actions they demonstrate: a row for each expert folder.

    python docs/expert_entropy.py experts/*

Demonstrations hold each policy's most probable action only, not how probable it was. Prints the mean probability of the
demonstrated actions and the policies' mean entropy as a share of uniform play's, both averaged over agents and the
observations of the stored demonstrations.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

import torch
import tyro

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from env_utils import UserError, exit_on_user_error, load_demos, load_policy, make_envs


@dataclass
class Args:
    folders: tyro.conf.Positional[tuple[Path, ...]]
    """folders with policy.safetensors and demos.npz, as train_expert_maac.py writes them"""


def main(args: Args) -> None:
    if not args.folders:
        raise UserError("name at least one expert folder, such as experts/cooperative_navigation")
    print("| expert | probability of its actions | entropy, of uniform play's |\n|---|---:|---:|")
    for folder in args.folders:
        policy = load_policy(folder / "policy.safetensors")
        demos = load_demos(folder / "demos.npz", envs=make_envs(policy.header["env_id"], 1))
        obs, actions, _ = demos.transitions()  # [n, agents, widest], [n, agents]
        probs = policy.logits(obs).softmax(-1)
        taken = probs.gather(-1, torch.as_tensor(actions)[..., None]).mean()
        entropy = (torch.special.entr(probs).sum(-1) / policy.num_actions.log()).mean()
        print(f"| `{folder}` | {taken:.2f} | {entropy:.2f} |")


if __name__ == "__main__":
    with exit_on_user_error():
        main(tyro.cli(Args, description=__doc__))
