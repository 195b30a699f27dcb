"""Sweeps: many settings of one scenario, run anywhere, written down as they end, never twice.

plan (the file) -> designs (which settings) -> points (checked scenarios) -> tasks on backends -> journal
(points.jsonl) -> table (results.csv) -> plots, report. Nothing in a result depends on where, in which order
or after how many interruptions its runs were made.
"""
