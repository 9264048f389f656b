"""Rover Tower, from MAAC's fork of the particle environments, for any even number of agents."""

import numpy as np

from particle_envs.world import BLUE, PURPLE, Entity, ParticleTask, TaskError, squared_length

NUM_MESSAGES, NUM_LANDMARKS = 5, 6
MESSAGES = np.arange(NUM_MESSAGES)[:, None]
ROVER_SIZE, LANDMARK_SIZE = 0.075, 0.04


class RoverTower(ParticleTask):
    """Rovers and towers are paired anew for each episode. A tower cannot move and guides its rover to a landmark."""

    drawn = ("rover_of_tower", "goal_of_tower")  # both [towers, B]

    def __init__(self, num_envs: int, seed: int | None = None, num_agents: int = 8):
        if num_agents < 4 or num_agents % 2:
            raise TaskError(f"rover_tower needs an even number of at least 4 agents, got {num_agents}")
        half = self.half = num_agents // 2  # the number of rovers, and of towers
        self.extra_blocks = {
            # Per rover: which tower is its own, and the message of that tower.
            "tower_one_hot": (half, half),
            "message": (half, NUM_MESSAGES),
            # Per tower: which rover is its own, where that rover is, and where it should go.
            "rover_one_hot": (half, half),
            "rover_position": (half, 2),
            "goal_position": (half, 2),
        }
        super().__init__(num_envs, seed)

    def make_entities(self):
        # MAAC's fork multiplies an action by the acceleration of 1.5 twice.
        rover = {"moves": True, "size": ROVER_SIZE, "force": 1.5 * 1.5, "max_speed": 1.0, "color": BLUE}
        return [
            *[Entity(f"rover_{k}", **rover) for k in range(self.half)],
            *[Entity(f"tower_{k}", speaks=NUM_MESSAGES, size=0.075, color=PURPLE) for k in range(self.half)],
            *[Entity(f"landmark_{k}", size=LANDMARK_SIZE) for k in range(NUM_LANDMARKS)],
        ]

    def reset_task(self):
        rovers = np.tile(np.arange(self.half)[:, None], self.num_envs)
        self.rover_of_tower = self.rng.permuted(rovers, axis=0)
        self.goal_of_tower = self.rng.integers(NUM_LANDMARKS, size=rovers.shape)

    def fill_blocks(self):
        env, number = np.arange(self.num_envs), np.arange(self.half)[:, None]
        tower_of_rover = self.rover_of_tower.argsort(axis=0)
        self.blocks["rover_one_hot"][...] = self.rover_of_tower[:, None] == number
        self.blocks["tower_one_hot"][...] = tower_of_rover[:, None] == number
        # Flat indices into [half, B] arrays, which are faster than pairs of indices at every step.
        self._rover_cells = self.rover_of_tower * self.num_envs + env
        self._tower_cells = tower_of_rover * self.num_envs + env
        goals = self.pos[:, 2 * self.half + self.goal_of_tower, env]  # [2, towers, B]
        self.blocks["goal_position"][...] = goals.transpose(1, 0, 2)
        self._goal_of_rover = goals.reshape(2, -1).take(self._tower_cells, axis=1)  # [2, rovers, B]
        self._update_rover_positions()

    def _update_rover_positions(self):
        rovers = self.pos[:, : self.half].reshape(2, -1).take(self._rover_cells, axis=1)  # [2, towers, B]
        self.blocks["rover_position"][...] = rovers.transpose(1, 0, 2)

    def hear(self, actions):
        heard = actions[self.half :].ravel().take(self._tower_cells)  # [rovers, B]
        np.equal(heard[:, None], MESSAGES, out=self.blocks["message"])
        self._update_rover_positions()

    def observation(self, me):
        if me < self.half:
            tower = self.values("tower_one_hot", me) + self.values("message", me)
            return tower + self.position(me) + self.velocity(me)
        tower = me - self.half
        rover = self.values("rover_one_hot", tower) + self.values("rover_position", tower)
        return rover + self.values("goal_position", tower)

    def reward(self):
        distance = squared_length(self.pos[:, : self.half] - self._goal_of_rover)  # [rovers, B], squared
        per_rover = 10.0 * (distance < 1.5 * (ROVER_SIZE + LANDMARK_SIZE)) - distance
        return np.concatenate([per_rover, per_rover.ravel().take(self._rover_cells)])

    def appearance(self, env):
        looks = super().appearance(env)
        for tower, rover in enumerate(self.rover_of_tower[:, env]):
            hue = tower / self.half  # each pair has its own color
            color = tuple(0.55 + 0.35 * np.cos(2 * np.pi * (hue + shift)) for shift in (0, 1 / 3, 2 / 3))
            looks[rover]["color"] = looks[self.half + tower]["color"] = color
            looks[rover]["goal"] = 2 * self.half + self.goal_of_tower[tower, env]
            message = self.blocks["message"][rover, :, env]
            looks[self.half + tower]["message"] = int(message.argmax()) if message.any() else None
        return looks
