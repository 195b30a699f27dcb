"""The real thing behind the simulator's calls: a PyTorch engine driven by the same scheduler objects.

The only place that imports torch. On CUDA it validates the model of serving; on the CPU the same code serves
tests, teaching and the comparison of model and machine where there is no GPU.
"""
