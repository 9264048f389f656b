"""Pictures of the particle tasks."""

import itertools

import numpy as np

from particle_envs.world import Entity, ParticleTask

WHITE, BLACK, INK, FRAME = (255, 255, 255), (0, 0, 0), (40, 40, 40), (225, 225, 225)


def rgb(color: tuple) -> tuple[int, ...]:
    """A color with parts in [0, 1], or slightly above, as bytes."""
    return tuple(int(255 * min(part, 1.0)) for part in color)


class Canvas:
    """Draws one environment of a batch into an array or a window."""

    side, header = 700, 36  # in pixels: the picture, and the strip at its top that holds the title
    fps = 10

    def __init__(self, title: str, window: bool = False):
        import pygame  # imported here, so that training does not load a graphics library

        self.pygame, self.window, self.title = pygame, window, title
        pygame.font.init()
        self.font, self.small_font = pygame.font.Font(None, 26), pygame.font.Font(None, 20)
        if window:
            pygame.display.init()
            self.surface = pygame.display.set_mode((self.side, self.side))
            pygame.display.set_caption(title)
            self.clock = pygame.time.Clock()
        else:
            self.surface = pygame.Surface((self.side, self.side))

    @staticmethod
    def reach(task: ParticleTask, env: int) -> float:
        """How far to show: the field is +-1. If an entity leaves it, zoom out in steps rather than continuously."""
        places = task.pos[:, :, env].T
        outermost = max(np.abs(place).max() + entity.size for place, entity in zip(places, task.entities))
        return max(1.25, np.ceil(4 * outermost) / 4)

    def draw(self, task: ParticleTask, env: int, reach: float | None = None) -> np.ndarray | None:
        """Return an image [side, side, 3] as uint8, or show it and return None if there is a window.

        The picture shows +-reach; by default, as much as holds all entities.
        """
        pygame, surface, entities = self.pygame, self.surface, task.entities
        places, looks = task.pos[:, :, env].T, task.appearance(env)
        colors = [rgb(look["color"]) for look in looks]
        scale = (self.side - self.header) / 2 / (reach or self.reach(task, env))
        middle = np.array([self.side, self.side + self.header]) / 2
        pixels = middle + places * scale * np.array([1, -1])  # y points up
        radii = [entity.size * scale for entity in entities]

        surface.fill(WHITE)
        pygame.draw.rect(surface, FRAME, (*(middle - scale), 2 * scale, 2 * scale), 2)
        # A line from each agent to its goal, and a ring around the goal in the color of each such agent.
        rings: dict[int, list] = {}
        for place, color, look in zip(pixels, colors, looks):
            if look["goal"] is not None:
                pygame.draw.line(surface, color, tuple(place), tuple(pixels[look["goal"]]), 2)
                rings.setdefault(look["goal"], []).append(color)
        for goal, ring_colors in rings.items():
            for n, color in reversed(list(enumerate(ring_colors))):
                inner = radii[goal] + 4 + 5 * n
                pygame.draw.circle(surface, color, tuple(pixels[goal]), inner + 3)
                pygame.draw.circle(surface, WHITE, tuple(pixels[goal]), inner)
        # Small entities lie on top of large ones and agents on top of landmarks, so that nothing is hidden.
        for k in sorted(range(len(entities)), key=lambda k: (-entities[k].size, entities[k].is_agent)):
            self._draw_entity(entities[k], colors[k], *pixels[k], max(radii[k], 4))
        for place, look in zip(pixels, looks):
            if look["message"] is not None:
                self._write(self.font, chr(ord("A") + look["message"]), tuple(place), WHITE, BLACK)
        self._write_labels(pixels, radii, [entity.name if entity.is_agent else "" for entity in entities])
        title = f"{self.title}   step {task.time} of {task.episode_length}"
        self._write(self.font, title, (self.side / 2, self.header / 2))
        if not self.window:
            return pygame.surfarray.array3d(surface).transpose(1, 0, 2).copy()
        pygame.event.pump()  # otherwise the system believes that the window does not respond
        pygame.display.flip()
        self.clock.tick(self.fps)
        return None

    def _draw_entity(self, entity: Entity, color: tuple, x: float, y: float, radius: float) -> None:
        """A circle if it moves or is an obstacle, a square if it is an agent that cannot move, else a diamond."""
        if entity.moves or (entity.collides and not entity.is_agent):
            self.pygame.draw.circle(self.surface, color, (x, y), radius)
            self.pygame.draw.circle(self.surface, BLACK, (x, y), radius, 1)
            return
        angles = np.pi / 2 * np.arange(4) + (np.pi / 4 if entity.is_agent else 0)
        reach = radius * (np.sqrt(2) if entity.is_agent else 1.2)
        corners = [(x + reach * np.cos(angle), y + reach * np.sin(angle)) for angle in angles]
        self.pygame.draw.polygon(self.surface, color, corners)
        self.pygame.draw.polygon(self.surface, BLACK, corners, 1)

    def _write_labels(self, pixels: np.ndarray, radii: list[float], labels: list[str]) -> None:
        """Write each label below, above or beside its entity: inside the picture, where it covers the least."""
        picture = self.surface.get_rect()
        taken = [self.pygame.Rect(x - r, y - r, 2 * r, 2 * r) for (x, y), r in zip(pixels, radii)]
        for (x, y), radius, label in zip(pixels, radii, labels):
            if not label:
                continue
            box = self.pygame.Rect((0, 0), self.small_font.size(label))
            down, right = radius + box.height / 2 + 3, radius + box.width / 2 + 5
            spots = [(0, down), (0, -down), (right, 0), (-right, 0), (0, 2 * down), (0, -2 * down)]
            boxes = [box.move(x + dx - box.width / 2, y + dy - box.height / 2).clamp(picture) for dx, dy in spots]
            best = min(boxes, key=lambda spot: len(spot.collidelistall(taken)))
            self._write(self.small_font, label, best.center)
            taken.append(best)

    def _write(self, font, text: str, center: tuple, color: tuple = INK, halo: tuple = WHITE) -> None:
        image, edge = font.render(text, True, color), font.render(text, True, halo)
        box = image.get_rect(center=center)
        for dx, dy in itertools.product((-1, 0, 1), repeat=2):
            self.surface.blit(edge, box.move(dx, dy))
        self.surface.blit(image, box)

    def close(self) -> None:
        if self.window:
            self.pygame.display.quit()
