"""PyTorch programs whose memory problem is known, composed from templates and a seed."""
