"""What the scripts share that is not an environment."""
