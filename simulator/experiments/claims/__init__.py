"""Claims about serving, each judged by numbers that the simulator computes."""
