"""Cooperative Communication, and mpe2's simple_speaker_listener."""

from typing import ClassVar

import numpy as np

from particle_envs.world import GREY, PURPLE, Entity, GoalTask, length, squared_length

LANDMARK_COLORS = ((0.65, 0.15, 0.15), (0.15, 0.65, 0.15), (0.15, 0.15, 0.65))
SPEAKER, LISTENER = 0, 1
MESSAGES = np.arange(3)[:, None]


class CooperativeCommunication(GoalTask):
    """A speaker sees which landmark is the goal but cannot move. A listener hears it and moves to the goal."""

    extra_blocks: ClassVar = GoalTask.extra_blocks | {"goal_color": (3,), "message": (3,)}

    def make_entities(self):
        return [
            Entity("speaker_0", speaks=3, size=0.075, color=PURPLE),
            Entity("listener_0", moves=True, size=0.075, color=GREY),
            *[Entity(f"landmark_{k}", size=0.04, color=color) for k, color in enumerate(LANDMARK_COLORS)],
        ]

    def fill_blocks(self):
        super().fill_blocks()
        self.blocks["goal_color"][...] = np.array(LANDMARK_COLORS)[self.goal].T

    def hear(self, actions):
        np.equal(actions[SPEAKER], MESSAGES, out=self.blocks["message"])

    def observation(self, me):
        if me == SPEAKER:
            return self.values("goal_color")
        return self.velocity(me) + self.relative(self.landmarks, me) + self.values("message")

    def listener_to_goal(self) -> np.ndarray:
        return self.pos[:, LISTENER] - self.blocks["goal_position"]

    def reward(self):
        # Both agents receive the sum of both agents' rewards, which are minus the distance.
        return -2.0 * length(self.listener_to_goal())[None]

    def appearance(self, env):
        looks = super().appearance(env)
        looks[LISTENER]["goal"] = 2 + self.goal[env]
        message = self.blocks["message"][:, env]
        looks[SPEAKER]["message"] = int(message.argmax()) if message.any() else None
        return looks


class SimpleSpeakerListener(CooperativeCommunication):
    """mpe2's version: both agents receive minus the squared distance."""

    mpe2_physics = True

    def reward(self):
        return -squared_length(self.listener_to_goal())[None]
