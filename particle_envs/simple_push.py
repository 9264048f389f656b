"""mpe2's simple_push, its version of Keep Away."""

import numpy as np

from particle_envs.keep_away import KeepAway
from particle_envs.world import GREEN, RED, Entity, length


class SimplePush(KeepAway):
    """As Keep Away, but the adversary does not see which landmark is the goal and is rewarded for being near it."""

    mpe2_physics = True
    landmark_range = 1.0

    def make_entities(self):
        return [
            Entity("adversary_0", moves=True, collides=True, color=RED),
            Entity("agent_0", moves=True, collides=True, color=GREEN),
            *[Entity(f"landmark_{k}", color=color) for k, color in enumerate(self.landmark_colors)],
        ]

    def observation(self, me):
        if me == 0:
            return self.velocity(me) + self.relative(self.landmarks, me) + self.relative(self.others(me), me)
        return super().observation(me)

    def reward(self):
        adversary, agent = length(self.pos[:, :2] - self.blocks["goal_position"][:, None])
        return np.array([agent - adversary, -agent])
