"""The highest request rate that a server sustains within its SLO, and what happens around it."""
