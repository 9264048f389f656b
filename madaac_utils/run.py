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
from dataclasses import asdict, fields
from pathlib import Path

import torch
import torch.nn as nn
from torch.utils.tensorboard import SummaryWriter
from tqdm import tqdm

from env_utils import RecordEpisodes
from madaac_utils.checkpoints import (
    load_checkpoint,
    lock,
    require_like,
    require_optimizer_fits,
    save_checkpoint,
    to_arrays,
    to_tensors,
)
from madaac_utils.configuration import PATHS, check_args, flag, resumed_args
from madaac_utils.evaluation import evaluate, score_table
from madaac_utils.files import Diverged, UserError, read_json, sha256, write_json
from madaac_utils.networks import task_header
from madaac_utils.policies import SavedPolicy, load_policy, policy_tensors, require_same_policy, save_policy
from madaac_utils.provenance import commit, make_run_folder
from madaac_utils.rewards import LearnedReward, learned_reward, require_same_reward, reward_tensors, save_reward
from madaac_utils.scores import Reference, mean_nss
from madaac_utils.video import require_can_draw, write_video


def _let_flush_report(failure) -> None:
    """TensorBoard writes in a thread of its own. Its errors are raised again by flush(), so they are not printed."""
    if not issubclass(failure.exc_type, OSError):
        threading.__excepthook__(failure)


class Run:
    def __init__(self, script: str, args, budget: str = "total_timesteps"):
        """`budget` names the argument that says how long to train; other budgets do not count environment steps."""
        self.script, self.args, self.folder, self.budget = Path(script).resolve(), args, None, budget
        self.step = self.previous = 0
        self.seconds_before, self.started, self.bar = 0.0, time.time(), tqdm(disable=True)
        self.processor_time_at_start = time.process_time()
        if args.resume:
            self.folder = Path(args.resume)
            self.args = resumed_args(self.folder, args, self.script, budget)
        for name in PATHS & {field.name for field in fields(args)}:
            if getattr(self.args, name):  # config.json may be read from other folders
                setattr(self.args, name, str(Path(getattr(self.args, name)).resolve()))
        self.args.exp_name = self.args.exp_name or self.script.stem
        check_args(self.args)
        if self.args.torch_threads:
            torch.set_num_threads(self.args.torch_threads)
        torch.manual_seed(self.args.seed)
        self.device = torch.device("cuda" if self.args.cuda else "cpu")

    def start(
        self,
        envs: RecordEpisodes,
        references: dict[str, Reference] | None,
        saves_policy: bool = True,
        **parts,
    ) -> None:
        """Make the run folder, or restore the parts of a resumed run from its checkpoint.

        `parts` are networks, optimizers and whatever else has state_dict() and load_state_dict(). Those called
        `policies` and `discriminators` are saved as policy.safetensors and reward.safetensors with every checkpoint,
        unless `saves_policy` is False because the script does that itself.
        """
        self.envs, self.references, self.parts, self.saves_policy = envs, references, parts, saves_policy
        if self.args.capture_video:
            require_can_draw(envs.envs)
        self._require_describable()
        self.log_every = max(1, min(self.args.log_every, self.total // 50))
        if self.args.resume:
            self.lock = lock(self.folder)
            self._restore()
        else:
            self.folder = make_run_folder(self.args, self.script)
            self.lock = lock(self.folder)
        learned_from = f", {self.args.n_demos} demonstrations" if hasattr(self.args, "n_demos") else ""
        budget = f"{self.total:,} {self.budget.replace('total_', '')}"
        print(f"{self.args.env_id}: {len(envs.agents)} agents{learned_from}, {budget}")
        print(f"run folder: {self.folder}" + (f", continued at step {self.step:,}" if self.step else ""), flush=True)
        if self.args.track:
            import wandb

            wandb.init(
                project="madaac",
                name=self.folder.name,
                config=asdict(self.args),
                sync_tensorboard=True,
                dir=self.folder,
            )
        try:
            self.writer = SummaryWriter(str(self.folder), purge_step=self.step + 1 if self.args.resume else None)
        except OSError as error:
            raise UserError(f"cannot write TensorBoard events to {self.folder}: {error.strerror}") from None
        threading.excepthook = _let_flush_report
        self.interrupted = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._interrupt)

    def _require_describable(self) -> None:
        """Raise an error now if the files could not hold what the networks compute."""
        header = task_header(self.envs)
        tensors, layers = policy_tensors(self.parts["policies"])
        require_same_policy(SavedPolicy(tensors, header | layers, "the policy"), self.parts["policies"], self.envs)
        if discriminators := self.parts.get("discriminators"):
            tensors, layers = reward_tensors(discriminators)
            require_same_reward(LearnedReward(tensors, header | layers, "the reward"), discriminators, self.envs)

    # The loop

    @property
    def total(self) -> int:
        """The length of the run, in steps of its budget."""
        return getattr(self.args, self.budget)

    @property
    def episodes(self) -> float:
        """How many episodes the agents have learned from so far."""
        return self.step / self.envs.episode_length if self.budget == "total_timesteps" else 0

    def steps(self, size: int = 1) -> Iterator[int]:
        """Yield the number of steps at the end of each iteration, which takes `size` of them."""
        total, self.started, self.processor_time_at_start = self.total, time.time(), time.process_time()
        self.first_step, self.saved_at, self.save_seconds = self.step, self.started, 0.0
        last_line = self.started - 50  # without a terminal, the first line comes after 10 seconds, then one per minute
        quiet = not sys.stderr.isatty()
        bar = tqdm(total=total, initial=self.step, unit="step", unit_scale=True, desc=self.args.env_id, disable=quiet)
        self.bar, self.status = bar, "no episode has been logged yet"
        while self.step < total:
            self.previous, self.step = self.step, self.step + size
            yield self.step
            bar.set_postfix_str(self.status, refresh=False)
            bar.update(size)
            now = time.time()
            if quiet and now - last_line > 60:
                last_line, rate = now, (self.step - self.first_step) / (now - self.started)
                left = (total - self.step) / rate
                time_left = f"{left / 60:.0f} minutes" if left > 100 else f"{left:.0f} seconds"
                print(", ".join([f"step {self.step:,} of {total:,}", f"{time_left} left", self.status]), flush=True)
            finished = self.step >= total
            # Saving takes less than 2 % of the time, however large the buffer is, unless --save-every is 0.
            wait = max(self.args.save_every, 50 * self.save_seconds) if self.args.save_every else 0
            if finished or self.interrupted or now - self.saved_at > wait:
                self.save()
            if self.interrupted and not finished:
                bar.close()
                print(f"stopped at step {self.step}; continue with: {self._resume_command()}", file=sys.stderr)
                sys.exit(130)
        bar.close()
        signal.signal(signal.SIGINT, signal.default_int_handler)  # everything is saved
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _resume_command(self) -> str:
        words = ["python", self.script.name, "--resume", str(self.folder)]
        if hasattr(self.args, "experts"):  # a run does not choose where files go
            words += ["--experts", self.args.experts]
        return shlex.join(words)

    def due(self, period: int) -> int:
        """How many multiples of `period` the current iteration has reached."""
        return self.step // period - self.previous // period

    @property
    def seconds(self) -> float:
        """Processor time of training so far, over all parts of a resumed run; other work on the machine adds little."""
        return self.seconds_before + time.process_time() - self.processor_time_at_start

    def log(self, metrics: dict[str, torch.Tensor | float]) -> None:
        """Write metrics, episode returns and NSS to TensorBoard. A metric that is not finite ends the run."""
        returns = self.envs.mean_returns()
        if returns is None or not metrics:
            return
        values = {name: float(value) for name, value in metrics.items()}
        for name, value in values.items():
            if not math.isfinite(value):
                raise self._diverged(f"{name} is {value}")
        seconds = time.time() - self.started
        values |= {f"charts/episodic_return-{agent}": value for agent, value in zip(self.envs.agents, returns)}
        values["charts/SPS"] = (self.step - self.first_step) / seconds
        values["charts/seconds"] = self.seconds
        values["charts/episodes"] = self.episodes
        status = [f"{int(self.episodes):,} episodes"] if self.episodes else []
        if self.references:
            values["charts/nss"] = mean_nss(returns, self.references)
        for name, label in (
            ("charts/nss", "NSS"),
            ("charts/pcc", "PCC"),
            ("losses/held_out", "held-out loss"),
            ("discriminator/accuracy_expert", "D on expert"),
            ("discriminator/accuracy_unseen_expert", "on unseen expert"),
            ("discriminator/accuracy_learner", "on learner"),
        ):
            if name in values:
                status.append(f"{label} {values[name]:.2f}")
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

    def _interrupt(self, *_) -> None:
        """Save and stop after this iteration; a second signal stops at once."""
        self.interrupted = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)

    # Checkpoints

    def save(self) -> None:
        """Write checkpoint.pt and keep the one before it; also the policy and the reward as they are now."""
        if name := self._not_finite():
            raise self._diverged(f"{name} contains numbers that are not finite")
        started = time.time()
        state = self._state()
        state["rng"] = [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [])]
        try:
            save_checkpoint(self.folder, state)
            self._save_networks()
        except UserError:
            self.bar.close()
            raise
        self.saved_at = time.time()
        self.save_seconds = self.saved_at - started

    def _state(self) -> dict:
        """All that a checkpoint holds but the state of the random generators."""
        return {
            "step": self.step,
            "seconds": self.seconds,
            "envs": to_tensors(self.envs.state_dict()),
            "parts": {name: to_tensors(part.state_dict()) for name, part in self.parts.items()},
        }

    def _save_networks(self) -> None:
        if self.saves_policy:
            self.save_policy(*policy_tensors(self.parts["policies"]))
        if "discriminators" in self.parts:
            save_reward(self.folder / "reward.safetensors", self.parts["discriminators"], self.envs)

    def save_policy(self, tensors: dict[str, torch.Tensor], header: dict) -> None:
        if not all(tensor.isfinite().all() for tensor in tensors.values()):
            raise self._diverged("the policy contains numbers that are not finite")
        save_policy(self.folder / "policy.safetensors", tensors, header, self.envs)

    def _not_finite(self) -> str | None:
        """The name of a part with numbers that are not finite."""
        for name, part in self.parts.items():
            tensors = part.state_dict().values() if isinstance(part, nn.Module) else ()
            if not all(tensor.isfinite().all() for tensor in tensors):
                return name
        return None

    def _diverged(self, what: str) -> Diverged:
        self.bar.close()  # so that the message starts on its own line
        saved = (self.folder / "checkpoint.pt").is_file()
        kept = "the last good checkpoint is kept in" if saved else "there is no checkpoint yet in"
        return Diverged(f"{what} at step {self.step}; {kept} {self.folder}")

    def _restore(self) -> None:
        state = load_checkpoint(self.folder, repair=True)
        try:
            rng = state.pop("rng")
            require_like(self._state(), state, "checkpoint")
            self.step, self.seconds_before = state["step"], state["seconds"]
            for name, part in self.parts.items():
                part.load_state_dict(state["parts"][name])
                if isinstance(part, torch.optim.Optimizer):
                    require_optimizer_fits(part, name)
            self.envs.load_state_dict(to_arrays(state["envs"]))
            require_like(self._state()["parts"], state["parts"], "checkpoint")  # now with the sizes of buffers
            torch.set_rng_state(rng[0])
            if len(rng) > 1:
                torch.cuda.set_rng_state_all(rng[1:])
            if name := self._not_finite():
                raise ValueError(f"{name} contains numbers that are not finite")
        except Exception as error:  # whatever a file can contain
            line = str(error).strip().split("\n")[0][:200]
            raise UserError(f"the checkpoint in {self.folder} does not fit this script: {line}") from None
        self._save_networks()  # those on disk may be older or newer than the checkpoint
        config = read_json(self.folder / "config.json", "the config of a run")
        ended = (self.folder / "summary.json").is_file()
        if self.total > self.step:
            (self.folder / "summary.json").unlink(missing_ok=True)
        elif ended:
            print(f"{self.folder} has ended and is evaluated again (a larger {flag(self.budget)} continues it)")
        if config.get("script_sha256") != sha256(self.script):  # --resume-changed
            before = {name: config.get(name) for name in ("script_sha256", "commit")}
            config["changed"] = [*config.get("changed", []), {"step": self.step, **before}]
            config |= {"script_sha256": sha256(self.script), "commit": commit(self.script)}
        write_json(self.folder / "config.json", config | {"args": asdict(self.args)})

    # The end

    def finish(self, **summary) -> None:
        """Check the saved files, evaluate the policy on fresh episodes, print a table, write summary.json last."""
        args, agents = self.args, list(self.envs.agents)
        policy = load_policy(self.folder / "policy.safetensors", self.envs)
        require_same_policy(policy, self.parts["policies"], self.envs)
        if has_reward := "discriminators" in self.parts:
            require_same_reward(learned_reward(self.folder, self.envs), self.parts["discriminators"], self.envs)
        players = {"stochastic": policy.stochastic(args.seed), "greedy": policy.greedy}
        found = evaluate(args.env_id, players, self.references, args.eval_episodes, args.seed)
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
        for name, scores in found.items():
            pairs = zip(agents, scores["score"], scores["interval_95"])
            summary[name] = {
                "nss": scores["nss_mean"],
                "scores": {agent: {"mean": mean, "interval_95": half} for agent, mean, half in pairs},
                "nss_by_agent": dict(zip(agents, scores["nss"])),
            }
        # One step behind the last one: a resumed run removes such points and writes its own.
        self.add_scalars({f"eval/nss_{name}": scores["nss_mean"] for name, scores in found.items()}, self.step + 1)
        self.writer.close()
        print(f"\n{args.eval_episodes} fresh episodes each, 95 % intervals over episodes")
        print(score_table(agents, self.references, found))
        if args.capture_video:
            write_video(self.folder / "video.mp4", args.env_id, {args.env_id: policy.greedy}, args.seed)
        write_json(self.folder / "summary.json", summary)
        folder = shlex.quote(str(self.folder))
        print(f"written: {self.folder}\nnext: python eval_nss.py {folder}\n      python plot.py {folder}")
        if has_reward:
            print(f"      python retrain.py {folder}")
