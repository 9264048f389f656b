"""mpe2's simple_tag."""

import numpy as np

from particle_envs.world import GREEN, RED, Entity, ParticleTask

PREY = 3


class SimpleTag(ParticleTask):
    """Three slow predators hunt a fast prey among two obstacles."""

    mpe2_physics = True
    landmark_range = 0.9

    def make_entities(self):
        predator = {"moves": True, "size": 0.075, "force": 3.0, "max_speed": 1.0, "collides": True, "color": RED}
        return [
            *[Entity(f"adversary_{k}", **predator) for k in range(3)],
            Entity("agent_0", moves=True, size=0.05, force=4.0, max_speed=1.3, collides=True, color=GREEN),
            *[Entity(f"landmark_{k}", size=0.2, collides=True) for k in range(2)],
        ]

    def observation(self, me):
        prey_velocity = [] if me == PREY else self.velocity(PREY)
        places = self.relative(self.landmarks, me) + self.relative(self.others(me), me)
        return self.velocity(me) + self.position(me) + places + prey_velocity

    def reward(self):
        catches = [k for k, (_, second) in enumerate(self.pairs) if second == PREY]
        caught = 10.0 * np.add.reduce(self.touching()[catches], axis=0)
        # The prey pays for leaving the field. Per coordinate: 0 up to 0.9, then 10 (x - 0.9), from 1 on e^(2x - 2),
        # at most 10.
        away = np.abs(self.pos[:, PREY])
        fence = np.where(away < 1, np.maximum(10 * away - 9, 0), np.minimum(np.exp(2 * away - 2), 10))
        return np.array([caught, caught, caught, -caught - fence[0] - fence[1]])
