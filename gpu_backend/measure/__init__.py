"""What this engine's kernels and steps take, and whether they are right.

`measure` times them for calibration (read in this order: points, bench, timers, host, timings_file, measure),
`check` holds them to the truth and to the device's own peaks, `evidence` does both and a replay.
"""
