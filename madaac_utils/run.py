"""A training run: its folder, arguments, logs, checkpoints, signals and final report.

run = Run(__file__, args)                            # a new run, or the one that --resume names
run.start(envs, references, policies=policies, ...)  # makes the folder, or restores the checkpoint
for step in run.steps(args.num_envs):                # counts, shows progress, saves, stops on Ctrl-C
    ...
    if run.due(run.log_every):
        run.log(metrics)
run.finish()                                         # files, evaluation, table, summary.json last
"""

import contextlib
import math
import shlex
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import torch
import torch.nn as nn
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from env_utils import RecordEpisodes
from madaac_utils.checkpoints import lock, restore_checkpoint, save_checkpoint, state_of
from madaac_utils.configuration import PATHS, check_args, flag, resumed_args
from madaac_utils.evaluation import evaluate, load_expert, score_table
from madaac_utils.experts import agents_compete
from madaac_utils.files import Diverged, UserError, write_json
from madaac_utils.networks import save_tensors
from madaac_utils.policies import describe_policy, load_policy
from madaac_utils.provenance import make_run_folder, update_config
from madaac_utils.rewards import describe_reward, learned_reward, save_reward
from madaac_utils.scores import by_agent, mean_nss
from madaac_utils.video import require_can_draw, write_video

# Metrics that the progress bar shows, and what it calls them
SHOWN = {
    "charts/nss": "NSS",
    "charts/pcc": "PCC",
    "losses/held_out": "held-out loss",
    "discriminator/accuracy_expert": "D expert",
    "discriminator/accuracy_unseen_expert": "unseen",
    "discriminator/accuracy_learner": "learner",
}


class Run:
    def __init__(self, script: str, args, budget: str = "total_timesteps"):
        """`budget` names the argument that says how long to train; other budgets do not count environment steps."""
        self.script, self.args, self.folder, self.budget = Path(script).resolve(), args, None, budget
        self.step = self.previous = 0
        self.seconds_before, self.bar = 0.0, tqdm(disable=True)
        if args.resume:
            self.folder = Path(args.resume)
            self.args = resumed_args(self.folder, args, self.script, budget)
        for name in PATHS:
            if getattr(self.args, name, ""):  # config.json may be read from other folders
                setattr(self.args, name, str(Path(getattr(self.args, name)).resolve()))
        self.args.exp_name = self.args.exp_name or self.script.stem
        check_args(self.args)
        if self.args.torch_threads:
            torch.set_num_threads(self.args.torch_threads)
        torch.manual_seed(self.args.seed)
        self.device = torch.device("cuda" if self.args.cuda else "cpu")

    def start(self, envs: RecordEpisodes, references: dict | None, saves_policy: bool = True, **parts) -> None:
        """Make the run folder, or restore the parts of a resumed run from its checkpoint.

        `parts` are networks, optimizers and whatever else has state_dict() and load_state_dict(). Those called
        `policies` and `discriminators` are saved as policy.safetensors and reward.safetensors with every checkpoint,
        unless `saves_policy` is False because the script does that itself.
        """
        self.envs, self.references, self.parts, self.saves_policy = envs, references, parts, saves_policy
        self.total = getattr(self.args, self.budget)
        self.has_reward = "discriminators" in parts
        self.log_every = max(1, min(self.args.log_every, self.total // 50))
        if self.args.capture_video:
            require_can_draw(envs.envs)
        describe_policy(parts["policies"], envs)  # raises an error if no file could hold what they compute
        if self.has_reward:
            describe_reward(parts["discriminators"], envs)
        if not self.args.resume:
            self.folder = make_run_folder(self.args, self.script)
        self.lock = lock(self.folder)
        if self.args.resume:
            self._restore()
        learned_from = f", {self.args.n_demos} demonstrations" if hasattr(self.args, "n_demos") else ""
        budget = f"{self.total:,} {self.budget.replace('total_', '')}"
        if self.budget == "total_timesteps":
            budget = f"{self.total // envs.episode_length:,} episodes ({self.total:,} steps)"
        print(f"{self.args.env_id}: {len(envs.agents)} agents{learned_from}, {budget}")
        print(f"run folder: {self.folder}" + (f", continued at step {self.step:,}" if self.step else ""), flush=True)
        if self.args.track:
            import wandb

            name, config = self.folder.name, asdict(self.args)
            wandb.init(project="madaac", name=name, config=config, dir=self.folder, sync_tensorboard=True)
        try:
            self.writer = SummaryWriter(str(self.folder), purge_step=self.step + 1 if self.args.resume else None)
        except OSError as error:
            raise UserError(f"cannot write TensorBoard events to {self.folder}: {error.strerror}") from None
        threading.excepthook = _let_flush_report
        self.interrupted = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._interrupt)

    # The loop

    @property
    def episodes(self) -> float:
        """How many episodes the agents have learned from so far."""
        return self.step / self.envs.episode_length if self.budget == "total_timesteps" else 0

    @property
    def seconds(self) -> float:
        """Processor time of training so far, over all parts of a resumed run; other work on the machine adds little."""
        return self.seconds_before + time.process_time() - self.processor_started

    def steps(self, size: int = 1) -> Iterator[int]:
        """Yield the number of steps at the end of each iteration, which takes `size` of them."""
        self.started, self.processor_started = time.time(), time.process_time()
        self.first_step, self.saved_at, self.save_seconds = self.step, self.started, 0.0
        self.last_line = self.started - 50  # without a terminal, a line after 10 seconds, then one per minute
        self.status = "nothing has been logged yet" if not self.step else "continued"
        options = {"unit": "step", "unit_scale": True, "desc": self.args.env_id, "disable": not sys.stderr.isatty()}
        self.bar = tqdm(total=self.total, initial=self.step, **options)
        while self.step < self.total:
            self.previous, self.step = self.step, self.step + size
            yield self.step
            self._show_progress(size)
            finished = self.step >= self.total
            # Saving takes less than 2 % of the time, however large the buffer is, unless --save-every is 0.
            wait = max(self.args.save_every, 50 * self.save_seconds) if self.args.save_every else 0
            if finished or self.interrupted or time.time() - self.saved_at > wait:
                self.save()
            if self.interrupted and not finished:
                self.bar.close()
                print(f"stopped at step {self.step}; continue with: {self._resume_command()}", file=sys.stderr)
                sys.exit(130)
        self.bar.close()
        _stop_at_once_on_signals()  # everything is saved

    def _show_progress(self, size: int) -> None:
        self.bar.set_postfix_str(self.status, refresh=False)
        self.bar.update(size)
        now = time.time()
        if self.bar.disable and now - self.last_line > 60:
            self.last_line, rate = now, (self.step - self.first_step) / (now - self.started)
            left = (self.total - self.step) / rate
            time_left = f"{left / 60:.0f} minutes" if left > 100 else f"{left:.0f} seconds"
            print(f"step {self.step:,} of {self.total:,}, {time_left} left, {self.status}", flush=True)

    def _interrupt(self, *_) -> None:
        """Save and stop after this iteration; a second signal stops at once."""
        self.interrupted = True
        _stop_at_once_on_signals()

    def _resume_command(self) -> str:
        words = ["python", self.script.name, "--resume", str(self.folder)]
        if hasattr(self.args, "experts"):  # a run does not choose where files go
            words += ["--experts", self.args.experts]
        return shlex.join(words)

    def due(self, period: int) -> int:
        """How many multiples of `period` the current iteration has reached."""
        return self.step // period - self.previous // period

    def log(self, metrics: dict[str, torch.Tensor | float]) -> None:
        """Write metrics, episode returns and NSS to TensorBoard. A metric that is not finite ends the run."""
        returns = self.envs.mean_returns()
        if returns is None or not metrics:
            return
        values = {name: float(value) for name, value in metrics.items()}
        for name, value in values.items():
            if not math.isfinite(value):
                raise self._diverged(f"{name} is {value}")
        values |= {f"charts/episodic_return-{agent}": value for agent, value in zip(self.envs.agents, returns)}
        values["charts/SPS"] = (self.step - self.first_step) / (time.time() - self.started)
        values["charts/seconds"] = self.seconds
        values["charts/episodes"] = self.episodes
        if self.references:
            values["charts/nss"] = mean_nss(returns, self.references)
        status = [f"{int(self.episodes):,} episodes"] if self.episodes else []
        status += [f"{label} {values[name]:.2f}" for name, label in SHOWN.items() if name in values]
        self.status = ", ".join(status)
        self.add_scalars(values, self.step)

    def add_scalars(self, values: dict[str, float], step: int) -> None:
        """Write points to TensorBoard. If the disk is full, save a checkpoint as far as possible and end the run."""
        try:
            for name, value in values.items():
                self.writer.add_scalar(name, value, step)
            self.writer.flush()
        except OSError as error:
            with contextlib.suppress(UserError):
                self.save()
            self.bar.close()
            raise UserError(f"cannot write TensorBoard events to {self.folder}: {error.strerror or error}") from None

    # Checkpoints

    def save(self) -> None:
        """Write checkpoint.pt and keep the one before it; also the policy and the reward as they are now."""
        for name, part in self.parts.items():
            if isinstance(part, nn.Module):
                self._require_finite(part.state_dict(), name)
        started = time.time()
        state = {"step": self.step, "seconds": self.seconds} | state_of(self.envs, self.parts)
        try:
            save_checkpoint(self.folder, state)
            self._save_networks()
        except UserError:
            self.bar.close()
            raise
        self.saved_at = time.time()
        self.save_seconds = self.saved_at - started

    def _save_networks(self) -> None:
        if self.saves_policy:
            policy = describe_policy(self.parts["policies"], self.envs)
            self.save_policy(policy.tensors, policy.header)
        if self.has_reward:
            save_reward(self.folder / "reward.safetensors", self.parts["discriminators"], self.envs)

    def save_policy(self, tensors: dict[str, torch.Tensor], header: dict) -> None:
        self._require_finite(tensors, "the policy")
        save_tensors(self.folder / "policy.safetensors", tensors, header, self.envs)

    def _require_finite(self, tensors: dict[str, torch.Tensor], name: str) -> None:
        if not all(tensor.isfinite().all() for tensor in tensors.values()):
            raise self._diverged(f"{name} contains numbers that are not finite")

    def _diverged(self, what: str) -> Diverged:
        self.bar.close()  # so that the message starts on its own line
        kept = "the last good checkpoint, if there is one already, is kept in"
        return Diverged(f"{what} at step {self.step}; {kept} {self.folder}")

    def _restore(self) -> None:
        state = restore_checkpoint(self.folder, self.envs, self.parts)
        self.step, self.seconds_before = state["step"], state["seconds"]
        self._save_networks()  # those on disk may be older or newer than the checkpoint
        if self.total > self.step:
            (self.folder / "summary.json").unlink(missing_ok=True)
        elif (self.folder / "summary.json").is_file():
            print(f"{self.folder} has ended and is evaluated again (a larger {flag(self.budget)} continues it)")
        update_config(self.folder, self.args, self.script, self.step)

    # The end

    def finish(self, **summary) -> None:
        """Read the saved files, evaluate the policy on fresh episodes, print a table, write summary.json last."""
        args, agents = self.args, list(self.envs.agents)
        policy = load_policy(self.folder / "policy.safetensors", self.envs)
        if self.has_reward:
            learned_reward(self.folder, self.envs)  # raises an error if it cannot be read back
        players = {"stochastic": policy.stochastic(args.seed), "greedy": policy.greedy}
        results = evaluate(args.env_id, players, self.references, args.eval_episodes, args.seed)
        summary = {
            "script": self.script.name,
            "env_id": args.env_id,
            "steps": self.step,
            "episodes": int(self.episodes),
            "seconds": round(self.seconds),
            "nss_last_500_training_episodes": mean_nss(self.envs.mean_returns(), self.references),
            **summary,
            **{name: dict(zip(agents, mean.tolist())) for name, (mean, _) in self.references.items()},
        }
        for name, result in results.items():
            nss_by_agent = dict(zip(agents, result["nss"]))
            scores = by_agent(agents, result)
            summary[name] = {"nss": result["nss_mean"], "scores": scores, "nss_by_agent": nss_by_agent}
        # One step behind the last one: a resumed run removes such points and writes its own.
        self.add_scalars({f"eval/nss_{name}": result["nss_mean"] for name, result in results.items()}, self.step + 1)
        self.writer.close()
        print(f"\n{args.eval_episodes} fresh episodes each, 95 % intervals over episodes")
        print(score_table(agents, self.references, results))
        if args.capture_video:
            write_video(self.folder / "video.mp4", args.env_id, {args.env_id: policy.greedy}, args.seed)
        write_json(self.folder / "summary.json", summary)
        print(f"written: {self.folder}")
        self._print_next_commands()

    def _print_next_commands(self) -> None:
        folder = shlex.quote(str(self.folder))
        commands = [f"eval_nss.py {folder}", f"plot.py {folder}"]
        with contextlib.suppress(UserError):  # not every task can be drawn
            require_can_draw(self.envs.envs)
            commands.append(f"eval_nss.py {folder} --video video.mp4")
        with contextlib.suppress(UserError):  # not all demonstrations have an expert beside them
            load_expert(self.args.env_id, getattr(self.args, "demos", ""))
            if agents_compete(self.args.env_id, self.envs.num_actions):
                commands.append(f"eval_nss.py {folder} --among-experts")
        if self.has_reward:
            commands.append(f"retrain.py {folder}")
        print("next: python " + "\n      python ".join(commands))


def _let_flush_report(failure) -> None:
    """TensorBoard writes in a thread of its own. Its errors are raised again by flush(), so they are not printed."""
    if not issubclass(failure.exc_type, OSError):
        threading.__excepthook__(failure)


def _stop_at_once_on_signals() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
