"""The loop: gradients, schedules, checkpoints, run folders."""
