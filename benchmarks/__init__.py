"""What `make bench` runs: each figure beside a peer's in the same run, medians and ratios, no verdicts."""
