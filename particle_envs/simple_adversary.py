"""mpe2's simple_adversary."""

import numpy as np

from particle_envs.world import BLUE, RED, Entity, GoalTask, length


class SimpleAdversary(GoalTask):
    """Two agents know which landmark is the goal. They hide it from an adversary that wants to be there."""

    mpe2_physics = True

    def make_entities(self):
        return [
            Entity("adversary_0", moves=True, size=0.15, color=RED),
            *[Entity(f"agent_{k}", moves=True, size=0.15, color=BLUE) for k in range(2)],
            *[Entity(f"landmark_{k}", size=0.08) for k in range(2)],
        ]

    def observation(self, me):
        goal = [] if me == 0 else self.goal_from(me)
        return goal + self.relative(self.landmarks, me) + self.relative(self.others(me), me)

    def reward(self):
        adversary, *agents = length(self.pos[:, :3] - self.blocks["goal_position"][:, None])
        good = adversary - np.minimum(*agents)
        return np.array([-adversary, good, good])

    def appearance(self, env):
        looks = super().appearance(env)
        looks[1]["goal"] = looks[2]["goal"] = 3 + self.goal[env]
        return looks
