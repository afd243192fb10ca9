"""What builds the house: set-up and locks. Standard library only, and nothing of ours is imported."""
