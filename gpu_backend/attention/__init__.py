"""Attention over paged KV behind one protocol: a reference on gathered KV, Triton kernels, torch's own."""
