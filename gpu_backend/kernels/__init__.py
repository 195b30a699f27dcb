"""Triton kernels: paged attention, KV writes, the INT8 product. Tested on the CPU in the interpreter."""
