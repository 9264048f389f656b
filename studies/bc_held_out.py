"""How to choose cloned policies on held-out demonstrations, and the step size and weight decay of bc_discrete.py.

    python studies/bc_held_out.py choice
    python studies/bc_held_out.py defaults

`choice` keeps policies by several criteria on the held-out demonstrations and plays 500 episodes with each of them, on
other seeds than evaluations. `defaults` is a cross-validation within the first 50 demonstrations: the share of the
expert's actions that is not predicted, at the best of the comparisons. It plays nothing.
"""

import copy
import sys
from pathlib import Path
from typing import Literal

import torch
import tyro

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from bc_discrete import Args, Policies, cloning_loss, hold_out, sample
from env_utils import make_envs, play_episodes
from madaac_utils.demos import Demos, load_demos, reference_scores
from madaac_utils.scores import mean_nss

TASKS = ("keep_away", "cooperative_communication", "cooperative_navigation", "rover_tower_8")
EVERY = 50  # updates between comparisons
SEED_OF_EPISODES = 777


def train(policies: Policies, expert, held_out, args: Args):
    """Yield the held-out loss and accuracy, [agents] each, at every comparison."""
    optimizer = torch.optim.Adam(policies.parameters(), args.lr, weight_decay=args.weight_decay, fused=True)
    for update in range(1, args.updates + 1):
        optimizer.zero_grad()
        cloning_loss(policies, expert.sample(args.batch_size))[0].sum().backward()
        optimizer.step()
        if update % EVERY == 0:
            with torch.no_grad():
                yield cloning_loss(policies, held_out)


def compare_choices(env_id: str, args: Args) -> str:
    envs, references = make_envs(env_id, 1), reference_scores(env_id)
    expert, held_out = hold_out(load_demos(env_id), args, torch.device("cpu"))
    policies = Policies(envs, args.hidden_size)
    names = ("loss of each agent", "accuracy of each agent", "mean accuracy", "last")
    kept = {name: copy.deepcopy(policies) for name in names}
    lowest = {name: torch.full((len(envs.agents),), torch.inf) for name in names}
    for loss, accuracy in train(policies, expert, held_out, args):
        mean = accuracy.mean().expand_as(accuracy)
        for name, value in zip(names, (loss, -accuracy, -mean, torch.full_like(loss, -torch.inf))):
            better = value <= lowest[name]
            lowest[name] = torch.minimum(lowest[name], value)
            with torch.no_grad():
                for parameter, new in zip(kept[name].parameters(), policies.parameters()):
                    parameter[better] = new[better]

    @torch.no_grad()
    def nss(name: str) -> float:
        def act(obs):
            return sample(kept[name](torch.as_tensor(obs).transpose(0, 1)).log_softmax(-1)).T.numpy()

        return mean_nss(play_episodes(env_id, act, 500, SEED_OF_EPISODES).mean(0), references)

    return " | ".join(f"{nss(name):.3f}" for name in names)


def cross_validate(env_id: str, args: Args, folds: int = 5) -> float:
    """The lowest share of unpredicted actions, of the mean over folds and agents."""
    envs, demos = make_envs(env_id, 1), load_demos(env_id).first(args.n_demos)
    size, errors = args.n_demos // folds, 0
    for k in range(folds):
        test = slice(k * size, (k + 1) * size)
        rest = [i for i in range(args.n_demos) if not test.start <= i < test.stop]
        others: Demos = demos[rest]
        curve = train(Policies(envs, args.hidden_size), others.transitions(), demos[test].transitions(), args)
        errors = errors + torch.stack([1 - accuracy.mean() for _, accuracy in curve]) / folds
    return errors.min().item()


def main(
    table: tyro.conf.Positional[Literal["choice", "defaults"]],
    env_ids: tuple[str, ...] = TASKS,
    seed: int = 1,
) -> None:
    torch.set_num_threads(1)
    if table == "choice":
        print("| task | loss of each agent | accuracy of each agent | mean accuracy | last |")
        print("|---|---:|---:|---:|---:|")
        for env_id in env_ids:
            torch.manual_seed(seed)
            print(f"| `{env_id}` | {compare_choices(env_id, Args())} |", flush=True)
        return
    print(f"| step size | weight decay | {' | '.join(env_ids)} |\n|---:|---:|{'---:|' * len(env_ids)}")
    for lr in (1e-3, 3e-3):
        for weight_decay in (1e-3, 3e-3, 1e-2):
            torch.manual_seed(seed)
            errors = [cross_validate(env_id, Args(lr=lr, weight_decay=weight_decay)) for env_id in env_ids]
            print(f"| {lr} | {weight_decay} | {' | '.join(f'{error:.3f}' for error in errors)} |", flush=True)


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
