"""Facts of the paper that several scripts need."""


def paper_episodes(env_id: str) -> int:
    """Training episodes in the paper's experiments."""
    return 100_000 if env_id.startswith("rover_tower") else 50_000


def paper_learner(env_id: str) -> str:
    """The learner that the paper retrains on recovered rewards."""
    return "maac" if env_id.startswith("rover_tower") else "mack"
