"""What Python users call; `kgbench` itself has the names, which load on first use."""
