"""The README's table of shipped experts, from their cards: python docs/expert_table.py"""

import dataclasses
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import train_expert_maac
from env_utils import EXPERTS
from particle_envs import TASK_IDS

# Jeon et al. 2020, appendix: 500 episodes of their experts.
PAPER = {
    "keep_away": "44.4 / −9.7",
    "cooperative_communication": "−15.3",
    "cooperative_navigation": "−77.1",
    "rover_tower_8": "127.5",
    "rover_tower_12": "126.3",
    "rover_tower_16": "123.9",
}
NOT_PART_OF_A_COMMAND = {"exp_name", "env_id", "torch_threads", "save_every", "total_timesteps"}


def scores(card: dict, who: str) -> str:
    """The mean over agents for rover_tower, else one number for agents whose scores read alike: one a role or one."""
    by_agent, of_all = card["scores"][who], card["mean_over_agents"][who]
    if card["env_id"].startswith("rover_tower"):
        mean = f"{of_all['mean']:.1f} ± {of_all['interval_95']:.1f} (mean of {len(by_agent)} agents)"
        return mean.replace("-", "−")
    cells = [f"{score['mean']:.1f} ± {score['interval_95']:.1f}" for score in by_agent.values()]
    return " / ".join(dict.fromkeys(cells)).replace("-", "−")


def command(card: dict) -> str:
    training = card["training"]
    if not training:
        return ""  # recorded from a policy of unknown origin
    defaults = dataclasses.asdict(train_expert_maac.Args())
    words = [f"--env-id {card['env_id']}"]
    paper_steps = (100_000 if card["env_id"].startswith("rover_tower") else 50_000) * 25
    if training["steps"] != paper_steps:
        words.append(f"--total-timesteps {training['steps']}")
    arguments = dict(training["args"])
    if "regularization" in arguments:  # of older cards: one weight for attention's and policies' logits
        weight = arguments.pop("regularization")
        arguments |= {"attention_regularization": weight, "logit_regularization": weight}
    for name, value in arguments.items():
        if name in defaults and name not in NOT_PART_OF_A_COMMAND and value != defaults[name]:
            flag = f"--{name.replace('_', '-')}"
            switch = flag if value else flag.replace("--", "--no-", 1)
            words.append(switch if isinstance(value, bool) else f"{flag} {value}")
    return f"`{' '.join(words)}`"


print("| task | expert | the paper's expert | random | episodes | arguments of `train_expert_maac.py` |")
print("|---|---:|---:|---:|---:|---|")
for task in TASK_IDS:
    path = EXPERTS / task / "card.json"
    if path.is_file():
        card = json.loads(path.read_text())
        expert, random = scores(card, "expert"), scores(card, "random")
        episodes = f"{card['training']['steps'] // 25:,}" if card["training"] else ""
        print(f"| `{task}` | {expert} | {PAPER.get(task, '')} | {random} | {episodes} | {command(card)} |")
