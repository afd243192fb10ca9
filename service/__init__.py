"""HTTP, the workers' supervision and the command line. Never imports numpy, mlx or workers."""
