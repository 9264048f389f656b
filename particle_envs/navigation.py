"""Cooperative Navigation, and mpe2's simple_spread."""

import numpy as np

from particle_envs.world import BLUE, Entity, ParticleTask, squared_length


class CooperativeNavigation(ParticleTask):
    """Three agents cover three landmarks and avoid each other. All receive the sum of the three rewards."""

    def make_entities(self):
        agents = [Entity(f"agent_{k}", moves=True, size=0.15, collides=True, color=BLUE) for k in range(3)]
        return agents + [Entity(f"landmark_{k}") for k in range(3)]

    def observation(self, me):
        # The zeros stand for the other agents' messages, which do not exist. Unlike in mpe2, there is no own position.
        places = self.relative(self.landmarks, me) + self.relative(self.others(me), me)
        return self.velocity(me) + places + self.values("zero") * 4

    def uncovered(self) -> np.ndarray:
        """[B]: the sum over landmarks of the distance to the nearest agent."""
        squared = squared_length(self.pos[:, :3, None] - self.pos[:, None, 3:])  # [agents, landmarks, B]
        return np.add.reduce(np.sqrt(np.minimum.reduce(squared, axis=0)), axis=0)

    def reward(self):
        # Agent i's own reward is -sum_l min_a d(a, l) + sum_a min(d(a, i) - 0.3, 0), in which a = i adds -0.3. In the
        # sum over the three agents, each pair counts twice and the constant is -0.9.
        overlap = np.add.reduce(np.minimum(np.sqrt(self.pair_squared) - 0.3, 0.0), axis=0)
        return (-3.0 * self.uncovered() - 0.9 + 2.0 * overlap)[None]


class SimpleSpread(CooperativeNavigation):
    """mpe2's version: half of the reward is the shared coverage, the other half counts the agent's own collisions."""

    mpe2_physics = True

    def observation(self, me):
        places = self.relative(self.landmarks, me) + self.relative(self.others(me), me)
        return self.velocity(me) + self.position(me) + places + self.values("zero") * 4

    def reward(self):
        touching = self.touching().astype(float)  # pairs (0, 1), (0, 2), (1, 2)
        collisions = touching[[0, 0, 1]] + touching[[1, 2, 2]]  # of each agent
        return -0.5 * self.uncovered() - 0.5 * collisions
