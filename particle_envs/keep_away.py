"""Keep Away: the scenario of MA-GAIL's fork of the particle environments with the physics of MAAC's fork.

In MAAC's physics the heavy pusher accelerates as fast as the reacher, and it pushes the reacher away in contacts.
"""

from typing import ClassVar

import numpy as np

from particle_envs.world import GREEN, RED, Entity, GoalTask, length


class KeepAway(GoalTask):
    """A reacher wants to be at one of two landmarks. A heavy pusher also knows which one and keeps it away."""

    landmark_range = 0.8
    landmark_colors = ((0.1, 0.9, 0.1), (0.1, 0.1, 0.9))
    extra_blocks: ClassVar = GoalTask.extra_blocks | {"reacher_color": (3,), "landmark_colors": (6,)}

    def make_entities(self):
        return [
            Entity("pusher_0", moves=True, mass=5.0, max_speed=2.0, collides=True, color=RED),
            Entity("reacher_0", moves=True, max_speed=2.0, collides=True, color=GREEN),
            *[Entity(f"landmark_{k}", color=color) for k, color in enumerate(self.landmark_colors)],
        ]

    def fill_blocks(self):
        super().fill_blocks()
        color = self.blocks["reacher_color"]
        color[...] = 0.25
        color[self.goal + 1, np.arange(self.num_envs)] += 0.5
        self.blocks["landmark_colors"][...] = np.ravel(self.landmark_colors)[:, None]

    def observation(self, me):
        landmarks, other = self.relative(self.landmarks, me), self.relative(self.others(me), me)
        if me == 0:
            return self.velocity(me) + self.goal_from(me) + landmarks + other
        own_color, landmark_colors = self.values("reacher_color"), self.values("landmark_colors")
        return self.velocity(me) + self.goal_from(me) + own_color + landmarks + landmark_colors + other

    def reward(self):
        reacher_to_goal = length(self.pos[:, 1] - self.blocks["goal_position"])
        pusher_to_reacher = np.sqrt(self.pair_squared[0])
        return np.array([5.0 * reacher_to_goal - 0.5 * pusher_to_reacher, -reacher_to_goal])

    def appearance(self, env):
        looks = super().appearance(env)
        looks[1]["goal"], looks[1]["color"] = 2 + self.goal[env], tuple(self.blocks["reacher_color"][:, env])
        return looks
