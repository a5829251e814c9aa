"""Run grids of trainings and keep their results."""
