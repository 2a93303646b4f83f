"""Checks whether a checkpoint fits a place: its GPUs, its CPU, its rights."""
