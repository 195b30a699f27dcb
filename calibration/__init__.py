"""Timings in, profile out; no torch. Read in this order: timings, checks, fit, held_out, write, cli."""
