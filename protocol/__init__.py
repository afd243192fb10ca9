"""What the service and its workers say to each other; a leaf that imports msgspec and nothing of ours."""
