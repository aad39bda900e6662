"""C for CPUs, compiled on the machine it runs on. Without a compiler, torch's own does the work."""
